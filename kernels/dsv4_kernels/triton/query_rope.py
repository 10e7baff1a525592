"""V3.2: rotate the rope dims of the query heads and append them to the absorbed queries, in one pass."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import pack_bf16, unpack_bf16
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, load_tail_table, pair_index, rotate_tail

_ROWS = 4


@triton.jit(do_not_specialize=["rows"])
def _query_rope(
    q, absorbed, positions, cos_sin, out, rows,
    q_token_stride, q_head_stride, absorbed_token_stride, absorbed_head_stride, table_stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = row < rows
    token = row // HEADS
    head = row - token * HEADS
    position = tl.load(positions + token, mask=mask, other=0)
    wide = mask[:, None, None]
    word = pair_index(8, 32)
    start = token * absorbed_token_stride + head * absorbed_head_stride
    latent = tl.load(absorbed + start[:, None, None] + word, mask=wide, other=0)
    rope_word = pair_index(1, 32)
    start = token * q_token_stride + head * q_head_stride
    even, odd = unpack_bf16(tl.load(q + start[:, None, None] + rope_word, mask=wide, other=0))
    cos, sin = load_tail_table(cos_sin + position * table_stride, mask, 1, 32)
    even, odd = rotate_tail(even, odd, cos, sin)
    target = out + row[:, None, None] * 288
    tl.store(target + word, latent, mask=wide)
    tl.store(target + 256 + rope_word, pack_bf16(even, odd), mask=wide)


def query_rope(
    *, q: torch.Tensor, q_absorbed: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> torch.Tensor:
    """Attention queries over latent entries.

    Args:
        q: bf16 [T, H, 192]; its last 64 dims are rotated.
        q_absorbed: bf16 [T, H, 512].
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].

    Returns:
        bf16 [T, H, 576]: ``[absorbed | RoPE(q[..., 128:])]``.
    """
    tokens, heads, _ = q.shape
    out = torch.empty((tokens, heads, 576), dtype=q_absorbed.dtype, device=q.device)
    if tokens == 0:
        return out
    rope, absorbed = as_words(q[..., -64:]), as_words(q_absorbed)
    programs = triton.cdiv(tokens * heads, _ROWS)
    _query_rope[(programs,)](
        rope, absorbed, positions, cos_sin, as_words(out), tokens * heads, rope.stride(0), rope.stride(1),
        absorbed.stride(0), absorbed.stride(1), cos_sin.stride(0), HEADS=heads, ROWS=_ROWS, num_warps=1,
        **launch_options(programs),
    )  # fmt: skip
    return out
