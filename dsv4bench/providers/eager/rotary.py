"""Rotary embedding in plain torch: slice, widen, rotate, concatenate."""

import torch


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    style: str = "interleaved",
    inverse: bool = False,
) -> torch.Tensor:
    """Rotate the rope dims of every vector; fp32 math, one rounding to ``x.dtype``.

    Args:
        x: [T, …, d].
        positions: int64 [T].
        cos_sin: fp32 [rows, R], ``[cos(R/2) | sin(R/2)]``.
        style: ``interleaved`` (pairs (2p, 2p+1) of the last R dims) or ``half`` (pairs (p, p + R/2) of the first R).
        inverse: rotate backwards.

    Returns:
        A new tensor like ``x``.
    """
    width = cos_sin.shape[-1]
    cos, sin = cos_sin[positions].view(-1, *(1,) * (x.dim() - 2), width).chunk(2, dim=-1)
    if inverse:
        sin = -sin
    if style == "half":
        rope, rest = x[..., :width], x[..., width:]
        a, b = rope.float().chunk(2, dim=-1)
        return torch.cat((torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype), rest), dim=-1)
    rest, rope = x[..., :-width], x[..., -width:]
    a, b = torch.unflatten(rope.float(), -1, (-1, 2)).unbind(-1)
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((rest, rotated.to(x.dtype)), dim=-1)
