"""Conversions to bf16 and e4m3, round to nearest even, and the packing of pairs, for use inside kernels.

On a GPU these are single instructions. Triton's interpreter rounds both casts toward zero and flushes small e4m3
values, so under it the same rounding is done on the bits, and kernels agree with the reference byte by byte there too.
"""

import triton
import triton.language as tl

_NATIVE = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def _bf16_bits(x):
    """Bits of fp32 rounded to bf16, in the upper half of an int32."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536


@triton.jit
def _e4m3_code(x):
    """e4m3 codes (int32) of fp32 values within ±448."""
    bits = tl.abs(x).to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # below 2^-6 steps are 2^-9, which is the spacing of fp32 at 3 * 2^13: adding that rounds
    small = ((tl.abs(x) + 24576.0).to(tl.int32, bitcast=True)) - 0x46C00000
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return tl.where(bits < 0x3C800000, small, normal) | sign


@triton.jit
def to_bf16(x):
    """Round fp32 to bf16."""
    if _NATIVE:
        return x.to(tl.bfloat16)
    return _bf16_bits(x).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def to_e4m3(x):
    """Round fp32 values within ±448 to e4m3."""
    if _NATIVE:
        return x.to(tl.float8e4nv)
    return _e4m3_code(x).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def unpack_bf16(words):
    """Even and odd elements (fp32) of int32 words that hold two bf16 each."""
    return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def pack_bf16(even, odd):
    """Round two fp32 tensors to bf16 and pack them into int32 words."""
    if _NATIVE:  # one instruction a pair; two separate conversions run at an eighth of its rate
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=tl.int32, is_pure=True, pack=1
        )
    return ((_bf16_bits(even) >> 16) & 0xFFFF) | _bf16_bits(odd)


@triton.jit
def pack_fp8(even, odd):
    """Convert two fp32 tensors within ±448 to e4m3 and pack them into 16-bit words."""
    if _NATIVE:  # joining two casts with shifts is miscompiled: ptxas 12.8 merges into a register nothing wrote
        return tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,f,f", [even, odd], dtype=tl.uint16, is_pure=True, pack=1
        )
    return (_e4m3_code(even) | (_e4m3_code(odd) << 8)).to(tl.uint16)
