"""RMS norm of rows, as a step of its own."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import to_bf16
from dsv4_kernels.triton.launch import begin, launch_options

_ROWS_OF_512 = 4


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x, weight, out, rows, eps, outer_stride, inner_stride,
    INNER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (column < WIDTH)[None, :]
    source = x + (row // INNER * outer_stride + row % INNER * inner_stride)[:, None] + column[None, :]
    y = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, axis=1) / WIDTH + eps)[:, None]
    if weight is not None:
        y = y * tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    target = out + row[:, None] * WIDTH + column[None, :]
    tl.store(target, y if out.dtype.element_ty == tl.float32 else to_bf16(y), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Normalise the last dim of bf16 or fp32 [T, D] or [T, H, D], any leading strides; contiguous, same dtype."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[-1]
    rows = out.numel() // width
    inner = x.shape[1] if x.dim() == 3 else 1
    per_program = _ROWS_OF_512 if width == 512 and x.dtype == torch.bfloat16 and rows > 512 else 1
    if rows:
        _rms_norm[(triton.cdiv(rows, per_program),)](
            x, weight, out, rows, eps, x.stride(0), x.stride(1) if x.dim() == 3 else 0,
            INNER=inner, WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=per_program,
            num_warps=1 if width <= 512 else 4, **launch_options(triton.cdiv(rows, per_program)),
        )  # fmt: skip
    return out
