"""Planted selections: which entries attention gathers, where a workload wants another pattern than random keys give.

Over random keys an indexer selects uniformly; trained ones favour recent entries and runs of neighbours, which changes
what the gather of attention finds in L2 and in a DRAM row. Every stage still runs at its full cost: ``topk`` scores and
selects as always, and only ``index_map`` is handed the planted indices instead of what ``topk`` returned.
"""

import torch

SELECTED = "topk_indices"
"""The tensor that a plan stands in for."""
PLANTED = "planted_topk_indices"
"""Name under which the planted one is in ``Values``, for stages to read in place of the one that is computed."""
CLUSTER = 16
"""Neighbouring entries that ``clustered`` selects together."""
_CHUNK_ELEMENTS = 1 << 26


def plant(pattern: str, candidate_lens: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """Request-local indices as ``topk`` would return them.

    Args:
        pattern: ``recent`` (the last k entries) or ``clustered`` (random runs of 16 neighbours).
        candidate_lens: int32 [T], entries visible to each token; with no more than k, all are selected.
        k: entries to select; for ``clustered`` a multiple of 16.
        generator: of the device of ``candidate_lens``.

    Returns:
        int32 [T, k], −1 behind the selected ones.

    Raises:
        ValueError: another pattern.
    """
    lens = candidate_lens.long().unsqueeze(1)
    first = torch.arange(k, device=lens.device).expand(len(lens), k)
    if pattern == "recent":
        chosen = first + (lens - k).clamp_min(0)
    elif pattern == "clustered":
        chosen = torch.where(lens > k, _runs(lens, k, generator), first)
    else:
        raise ValueError(f"no selection pattern {pattern!r}; known: recent, clustered")
    return torch.where(first < lens, chosen, -1).to(torch.int32)


def _runs(lens: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """Random distinct whole runs among the complete ones of each token: int64 [T, k]; nonsense where lens ≤ k."""
    longest = int(lens.max()) if len(lens) else 0
    runs = max(longest, k) // CLUSTER
    offsets = torch.arange(CLUSTER, device=lens.device)
    number = torch.arange(runs, device=lens.device)
    parts = []
    for part in torch.split(lens, max(1, _CHUNK_ELEMENTS // runs)):
        score = torch.rand((len(part), runs), generator=generator, device=lens.device)
        best = score.masked_fill(number >= part // CLUSTER, -1.0).topk(k // CLUSTER, dim=1).indices
        parts.append((best.unsqueeze(-1) * CLUSTER + offsets).flatten(1))
    return torch.cat(parts)
