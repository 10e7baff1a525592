"""The join of a token's shares: attention that cut its entries into several programs leaves an output of each.

A program is one warp, so that it needs no shared memory. Programs of four warps and 4 KB took 6 us longer where 1,024
of them followed 32 of attention (NVIDIA H200, 2026-11-29): a multiprocessor divides its memory between cache and shared
memory in one way at a time, and presumably cannot change it before the attention program has left.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.launch import begin, launch_options

_VALUE = tl.constexpr(512)
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_AT_ONCE = 16
"""Shares whose values a program has under way."""
_BYTES = 8192
"""The same in bytes: sixteen 16-byte loads a thread."""


@triton.jit(do_not_specialize=["num_heads", "num_splits"])
def _join_shares_kernel(
    partial, partial_lse, sink, out, lse, num_heads, num_splits,
    HAS_SINK: tl.constexpr, SPLITS: tl.constexpr, ROUNDS: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Join the shares of one (token, head), WIDTH output dims a program, SPLITS shares at a time."""
    begin(PDL)
    token = (tl.program_id(0) // num_heads).to(tl.int64)
    head = tl.program_id(0) % num_heads
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    every = tl.arange(0, ROUNDS * SPLITS)
    rows = (token * num_splits + every) * num_heads + head
    shares = tl.load(partial_lse + rows, mask=every < num_splits, other=float("-inf"))
    top = tl.max(shares, axis=0)
    seen = top > float("-inf")
    shift = tl.where(seen, top, 0.0)
    total = tl.sum(tl.exp2((shares - shift) * _LOG2E), axis=0)
    natural = tl.where(seen, shift + tl.log2(tl.where(seen, total, 1.0)) * _LN2, float("-inf"))
    norm = tl.where(seen, 1.0 / tl.where(seen, total, 1.0), 0.0)
    if HAS_SINK:
        norm = norm / (1.0 + tl.exp2((tl.load(sink + head) - tl.where(seen, natural, 0.0)) * _LOG2E))
    acc = tl.zeros([WIDTH], tl.float32)
    for step in tl.static_range(ROUNDS):
        some = step * SPLITS + tl.arange(0, SPLITS)
        row = (token * num_splits + some) * num_heads + head
        share = tl.load(partial_lse + row, mask=some < num_splits, other=float("-inf"))
        values = tl.load(
            partial + row[:, None] * _VALUE + column[None, :], mask=(some < num_splits)[:, None], other=0.0
        ).to(tl.float32)
        acc += tl.sum(values * tl.exp2((share - shift) * _LOG2E)[:, None], axis=0)
    place = token * num_heads + head
    tl.store(out + place * _VALUE + column, (acc * norm).to(out.dtype.element_ty))
    if tl.program_id(1) == 0:
        tl.store(lse + place, natural)


def join_shares(
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    sink: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    early: bool,
) -> None:
    """Join partial outputs into ``out`` and ``lse``.

    Args:
        partial: fp16 or fp32 [T, splits, H, 512], each share normalised.
        partial_lse: fp32 [T, splits, H], natural log; -inf where a share saw nothing.
        sink: fp32 [H], joins the denominator only; or None.
        out: bf16 [T, H, 512].
        lse: fp32 [T, H], without the sink.
        early: launch dependently. It pays while most multiprocessors are free; otherwise the programs that start early
            gather on the few that are.
    """
    tokens, splits, heads, width = partial.shape
    at_once = min(_AT_ONCE, triton.next_power_of_2(splits))
    width = min(width, _BYTES // (at_once * partial.element_size()))
    _join_shares_kernel[(tokens * heads, 512 // width)](
        partial, partial_lse, lse if sink is None else sink, out, lse, heads, splits, HAS_SINK=sink is not None,
        SPLITS=at_once, ROUNDS=triton.next_power_of_2(triton.cdiv(splits, at_once)), WIDTH=width, num_warps=1,
        **(launch_options() if early else {"PDL": False}),
    )  # fmt: skip
