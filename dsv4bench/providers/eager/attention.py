"""Sparse attention over gathered entries, and what follows it: inverse rotation and output quantisation."""

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.providers.eager.entries import exp2_int, quantize_fp8, read_entries
from dsv4bench.providers.eager.products import bmm_fp32, operand_dtype
from dsv4bench.providers.eager.rotary import rotate
from dsv4bench.providers.eager.workspace import chunks

VALUE_DIM = 512
OUTPUT_BLOCK = 128
OUTPUT_AMAX_FLOOR = 1e-10


def sparse_attention(
    *,
    q: torch.Tensor,
    window_cache: PagedCache | None,
    window_indices: torch.Tensor | None,
    window_lens: torch.Tensor | None,
    compressed_cache: PagedCache | None,
    compressed_indices: torch.Tensor | None,
    compressed_lens: torch.Tensor | None,
    sink: torch.Tensor | None,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention of every head over the window and the selected entries; keys are the values.

    Args:
        q: [T, H, 512], or 576 for V3.2, whose values are the first 512 dims.
        window_cache: None for V3.2.
        window_indices: int32 [T, 128] slots.
        window_lens: int32 [T].
        compressed_cache: None for window-only layers.
        compressed_indices: int32 [T, Ke] slots, −1 invalid.
        compressed_lens: int32 [T].
        sink: fp32 [H] logits that only enter the denominator, or None.
        softmax_scale: factor on q·k.

    Returns:
        Output [T, H, 512] like ``q``, and fp32 log-sum-exp [T, H] without the sink. Nothing selected: 0 and −inf.
    """
    sources = [
        (cache, _capped(indices, lens))
        for cache, indices, lens in (
            (window_cache, window_indices, window_lens),
            (compressed_cache, compressed_indices, compressed_lens),
        )
        if cache is not None and indices is not None and lens is not None
    ]
    tokens, heads, dim = q.shape
    out = torch.empty(tokens, heads, VALUE_DIM, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    width = sum(slots.shape[1] for _, slots in sources)
    for part in chunks(tokens, width * (12 * dim + 12 * heads), q.device):
        out[part], lse[part] = _attend(q[part], [(cache, slots[part]) for cache, slots in sources], sink, softmax_scale)
    return out, lse


def _attend(
    q: torch.Tensor, sources: list[tuple[PagedCache, torch.Tensor]], sink: torch.Tensor | None, softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk of ``sparse_attention``: gather, dequantise, two batched products around a softmax."""
    dtype = operand_dtype(q.dtype, sources[0][0].format.precision, q.device)
    kv = torch.cat([read_entries(cache, slots, dtype) for cache, slots in sources], dim=1)
    hidden = torch.cat([slots < 0 for _, slots in sources], dim=1).unsqueeze(1)
    scores = bmm_fp32(q.to(dtype), kv.transpose(1, 2)).mul_(softmax_scale).masked_fill_(hidden, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    total = lse if sink is None else torch.logaddexp(lse, sink)
    weights = torch.exp(scores - total.masked_fill(total == float("-inf"), 0).unsqueeze(-1))
    return torch.bmm(weights.to(dtype), kv[..., :VALUE_DIM]).to(q.dtype), lse


def _capped(indices: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Indices with −1 from the token's length on."""
    return indices.masked_fill(torch.arange(indices.shape[1], device=indices.device) >= lens.unsqueeze(1), -1)


def inverse_rope_quant(
    *, o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int, precision: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate outputs back, group the heads, quantise.

    Args:
        o: [T, H, 512].
        positions: int64 [T].
        cos_sin: fp32 [rows, 64].
        groups: output groups; consecutive heads share one.
        precision: ``fp8``, or anything else for the activation dtype.

    Returns:
        [T, G, H/G·512], and fp32 scales [T, G, H/G·4] of 128 elements each (None unless ``fp8``).
    """
    values = torch.unflatten(rotate(o, positions, cos_sin, inverse=True), 1, (groups, -1)).flatten(2)
    if precision != "fp8":
        return values, None
    codes, exponent = quantize_fp8(values, OUTPUT_BLOCK, OUTPUT_AMAX_FLOOR)
    return codes, exp2_int(exponent)
