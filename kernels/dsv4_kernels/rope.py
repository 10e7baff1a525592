"""Rotary tables and rotations: the one place that knows YaRN, pair order and which dims are rotated.

The table is fp32 ``[cos(32) | sin(32)]`` per position. Frequencies and angles are rounded to fp32 at the same steps as
DeepSeek's published inference code and transformers do on the CPU; a table from float64 angles differs by up to 2e-2 at
a million tokens, so more digits would be less right.
"""

from math import ceil, floor, log, pi

import torch

from dsv4_kernels.formats import ROPE_DIM


def inverse_frequencies(
    theta: float,
    factor: float = 1.0,
    original_positions: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    dim: int = ROPE_DIM,
) -> torch.Tensor:
    """Angle per position of each pair, fp32 [dim / 2] on the CPU.

    Args:
        theta: base of the geometric series.
        factor: YaRN interpolation factor; 1 leaves the series plain.
        original_positions: training length that YaRN extends.
        beta_fast: rotations over that length above which a pair keeps its frequency.
        beta_slow: rotations below which a pair is interpolated entirely.
        dim: rotated dims.
    """
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if factor == 1.0:
        return plain

    def correction(rotations: float) -> float:
        return dim * log(original_positions / (rotations * 2 * pi)) / (2 * log(theta))

    low = max(floor(correction(beta_fast)), 0)
    high = min(ceil(correction(beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def cos_sin_table(
    max_position: int,
    theta: float,
    factor: float = 1.0,
    original_positions: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    *,
    dim: int = ROPE_DIM,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Build rows 0 … max_position − 1 of a rotary table, fp32 [max_position, dim] = ``[cos | sin]``.

    Built on the CPU whatever the device, so that every device holds the same bits. V4 never scales the table by a
    YaRN magnitude, and V3.2 puts its magnitude into the softmax scale.
    """
    frequencies = inverse_frequencies(theta, factor, original_positions, beta_fast, beta_slow, dim)
    angles = torch.arange(max_position, dtype=torch.float32)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    style: str = "interleaved",
    inverse: bool = False,
) -> torch.Tensor:
    """Rotate 64 dims of ``x`` by their token's position and return a new tensor of the same dtype.

    Args:
        x: [T, …, dim] in fp32 or float64, already widened: the rotation rounds nowhere in between.
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        style: ``interleaved`` rotates the last 64 dims in pairs (2p, 2p + 1); ``half`` the first 64 in pairs
            (p, p + 32), which only V3.2's indexer does.
        inverse: rotate back.
    """
    if style not in ("interleaved", "half"):
        raise ValueError(f"rope style must be 'interleaved' or 'half', not {style!r}")
    half = cos_sin.shape[-1] // 2
    table = cos_sin[positions].to(x.dtype).view(-1, *(1,) * (x.dim() - 2), 2 * half)
    cos, sin = table[..., :half], table[..., half:]
    if inverse:
        sin = -sin
    if style == "half":
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1)
    rest, pairs = x[..., : -2 * half], torch.unflatten(x[..., -2 * half :], -1, (half, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((rest, rotated), dim=-1)
