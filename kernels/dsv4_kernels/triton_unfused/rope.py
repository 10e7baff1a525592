"""RoPE on the last 64 dims of rows, as a step of its own: whole rows are read and written."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import pack_bf16, unpack_bf16
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, load_tail_table, pair_index, rotate_tail

_BLOCKS = 2


@triton.jit(do_not_specialize=["rows"])
def _rope(
    x, out, positions, cos_sin, rows, token_stride, head_stride, table_stride,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, ANCHOR: tl.constexpr,
    INVERSE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < rows
    token = row // HEADS
    position = tl.load(positions + token, mask=mask, other=0) // ANCHOR * ANCHOR
    PAIRS: tl.constexpr = WIDTH // 2 // BLOCKS
    word = pair_index(BLOCKS, PAIRS)
    source = (token.to(tl.int64) * token_stride + row % HEADS * head_stride)[:, None, None] + word
    target = row.to(tl.int64)[:, None, None] * (WIDTH // 2) + word
    cos, sin = load_tail_table(cos_sin + position * table_stride, mask, BLOCKS, PAIRS)
    if x.dtype.element_ty == tl.int64:  # two fp32 a word
        words = tl.load(x + source, mask=mask[:, None, None], other=0)
        even = words.to(tl.int32).to(tl.float32, bitcast=True)
        odd = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        even, odd = rotate_tail(even, odd, cos, sin, INVERSE)
        low = even.to(tl.uint32, bitcast=True).to(tl.int64)
        words = low | (odd.to(tl.uint32, bitcast=True).to(tl.int64) << 32)
        tl.store(out + target, words, mask=mask[:, None, None])
    else:
        even, odd = unpack_bf16(tl.load(x + source, mask=mask[:, None, None], other=0))
        even, odd = rotate_tail(even, odd, cos, sin, INVERSE)
        tl.store(out + target, pack_bf16(even, odd), mask=mask[:, None, None])


def rope(
    x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, *, inverse: bool = False, anchor: int = 1
) -> torch.Tensor:
    """Rotate bf16 [T, H, D], or fp32 [T, D] (contiguous), by ``positions``; a contiguous tensor of the same dtype.

    ``anchor`` rounds positions down to a multiple, as compressed entries need it.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    heads, width = (x.shape[1] if x.dim() == 3 else 1), x.shape[-1]
    rows = x.shape[0] * heads
    words = x.view(torch.int64) if x.dtype == torch.float32 else as_words(x)
    per_program = 1 if rows <= 512 else 4 if width == 512 else 16
    if rows:
        _rope[(triton.cdiv(rows, per_program),)](
            words, out.view(words.dtype), positions, cos_sin, rows, words.stride(0),
            words.stride(1) if x.dim() == 3 else 0, cos_sin.stride(0),
            HEADS=heads, WIDTH=width, BLOCKS=_BLOCKS, ROWS=per_program, ANCHOR=anchor, INVERSE=inverse, num_warps=1,
            enable_fp_fusion=False, **launch_options(triton.cdiv(rows, per_program)),
        )  # fmt: skip
    return out
