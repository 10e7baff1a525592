"""Activations in e4m3 with a power-of-two scale per 128 elements: as part of another kernel, and as one of its own.

A product with an fp8 weight takes its activations like this (``dsv4_kernels.weight``). The values are those of
``codec.quantize_fp8``, byte for byte.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import to_e4m3
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.scales import fp8_scale_byte, power_of_two, reciprocal_power_of_two
from dsv4_kernels.weight import AMAX_FLOOR, BLOCK

TOKEN_ALIGNMENT = 4
"""Scales lie with tokens innermost, padded to a multiple of this: 16 bytes, which a TMA-fed product asks for."""
_FLOOR = tl.constexpr(AMAX_FLOOR)
_BLOCK = tl.constexpr(BLOCK)
_TOKENS, _WARPS = 8, 4


@triton.jit
def quantised_blocks(x):
    """Quantise blocks bf16 or fp32 [ROWS, 128]: e4m3 [ROWS, 128] and fp32 scales [ROWS]."""
    wide = x.to(tl.float32)
    byte = fp8_scale_byte(tl.max(tl.abs(wide), axis=1), _FLOOR)
    return to_e4m3(wide * reciprocal_power_of_two(byte)[:, None]), power_of_two(byte)


@triton.jit(do_not_specialize=["tokens", "groups", "blocks", "padded"])
def _quantise(
    x, values, scales, tokens, groups, blocks, padded, token_stride, group_stride, block_stride,
    TOKENS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    program = tl.program_id(0)
    block, group = program % blocks, program // blocks % groups
    token = program // (blocks * groups) * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, _BLOCK)[None, :]
    wide = token.to(tl.int64)[:, None]
    source = x + wide * token_stride + group.to(tl.int64) * group_stride + block.to(tl.int64) * block_stride + column
    code, scale = quantised_blocks(tl.load(source, mask=(token < tokens)[:, None], other=0.0))
    inside = token < padded  # rows beyond the last token are read by aligned loads
    target = values + ((group.to(tl.int64) * padded + wide) * blocks + block) * _BLOCK + column
    tl.store(target, code, mask=inside[:, None])
    tl.store(scales + (group.to(tl.int64) * blocks + block) * padded + token, scale, mask=inside)


def quantise_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise activations per token and 128 elements, in one launch.

    Args:
        x: bf16 [T, G, B, 128], any strides but the last, which is 1.

    Returns:
        e4m3 values [T', G, B · 128], contiguous per group, and fp32 scales [T', G, B] with strides (1, B · T', T'),
        where T' is T rounded up to a multiple of 4; values beyond T are zero.
    """
    tokens, groups, blocks, _ = x.shape
    padded = triton.cdiv(tokens, TOKEN_ALIGNMENT) * TOKEN_ALIGNMENT
    values = torch.empty((groups, padded, blocks * BLOCK), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((groups, blocks, padded), dtype=torch.float32, device=x.device)
    if tokens:
        programs = triton.cdiv(padded, _TOKENS) * groups * blocks
        _quantise[(programs,)](
            x, values, scales, tokens, groups, blocks, padded, *x.stride()[:3], TOKENS=_TOKENS, num_warps=_WARPS,
            **launch_options(programs),
        )  # fmt: skip
    return values.transpose(0, 1), scales.permute(2, 0, 1)
