"""Power-of-two quantisation scales by integer arithmetic, for use inside kernels.

A scale is ``2^ceil(log2(max(amax, floor) / largest))``. Taken from the exponent and mantissa bits it is exact at
``amax = largest * 2^k``, where a division and a logarithm are not, and its reciprocal is one subtraction.
"""

import triton
import triton.language as tl


@triton.jit
def fp8_scale_byte(amax, FLOOR: tl.constexpr):
    """Biased exponent (int32) of the e4m3 scale of a block whose maximum is ``amax`` (fp32): 448 = 1.75 * 2^8."""
    bits = tl.maximum(amax, FLOOR).to(tl.int32, bitcast=True)
    return ((bits + 0x1FFFFF) >> 23) - 8


@triton.jit
def fp4_scale_byte(amax):
    """Biased exponent (int32) of the e2m1 scale of a block whose maximum is ``amax`` (fp32): 6 = 1.5 * 2^2."""
    bits = tl.maximum(amax, 6.0 * 2.0**-126).to(tl.int32, bitcast=True)
    return ((bits + 0x3FFFFF) >> 23) - 2


@triton.jit
def power_of_two(byte):
    """fp32 ``2^(byte - 127)`` of a biased exponent in 1..254."""
    return (byte << 23).to(tl.float32, bitcast=True)


@triton.jit
def reciprocal_power_of_two(byte):
    """fp32 ``2^(127 - byte)``, exact for a biased exponent in 1..253."""
    return ((254 - byte) << 23).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_code(x):
    """4-bit e2m1 codes (int32) of scaled fp32 values, round to nearest, ties to the even code, sign at bit 3."""
    a = tl.abs(x)
    # ties go to the even code: upwards at .75, 1.75 and 3.5, downwards at the others
    up = (a >= 0.75).to(tl.int32) + (a >= 1.75).to(tl.int32) + (a >= 3.5).to(tl.int32)
    down = (a > 0.25).to(tl.int32) + (a > 1.25).to(tl.int32) + (a > 2.5).to(tl.int32) + (a > 5.0).to(tl.int32)
    sign = (x.to(tl.int32, bitcast=True) >> 28) & 8
    return up + down + sign
