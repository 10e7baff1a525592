"""Padding tokens, which fill a batch up to the size that a CUDA graph was captured for: they write and see nothing."""

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import stage_arguments
from dsv4bench.verify.entries import WRITES
from dsv4bench.verify.sequences import Sequences
from dsv4bench.verify.trial import Trial

NOTHING = {
    "positions": 0,
    "token_to_request": 0,
    "window_slots": -1,
    "state_slots": -1,
    "compressed_slots": -1,
    "window_indices": -1,
    "window_lens": 0,
    "candidate_lens": 0,
    "compressed_indices": -1,
    "compressed_lens": 0,
}
"""A padding token's part of each tensor that has one per token."""
CONTEXTS = (256, 7, 131)
"""Lengths of the real requests. The first completes an entry in every kind of V4 layer, which its slots 0 go into."""
PADDED = (-1, 0, -1, 1, 2, -1)
"""Request of each token, −1 for padding: an engine pads at the end, but nothing may depend on it."""
UNTOUCHED = 0xA5
"""Byte in front of a cache."""
READERS = ("indexer_logits", "topk", "index_map", "sparse_attention")
STAGES = (*WRITES, *READERS)
"""Stages to which padding is any different."""


def padding_tokens(trial: Trial) -> None:
    """Beside real tokens, padding writes no byte, not even of slot 0, and attends nothing."""
    seqs = trial.sequences(requests=len(CONTEXTS), limit=max(CONTEXTS), start=[n - 1 for n in CONTEXTS], slab=False)
    before = _move_to_page_zero(seqs)
    values = _padded(trial, seqs.step([1] * len(CONTEXTS)))
    for stage in trial.stages:
        if stage.name not in STAGES:
            values.update(zip(stage.outputs, trial.plain(stage.name, **stage_arguments(stage, values)), strict=True))
            continue
        trial.layer(values, [stage.name])
        if stage.name in WRITES:
            untouched = bool((before[stage.inputs[WRITES[stage.name][0]]] == UNTOUCHED).all())
            trial.expect(stage.name, "stray writes", untouched, "bytes before the first page of the cache")


def _move_to_page_zero(seqs: Sequences) -> dict[str, torch.Tensor]:
    """Let the first request own page 0 of every cache, where it is read; returns the bytes before that page.

    Caches come with a page in front that belongs to nobody. Cut off, it shows what is written for a slot of −1 that a
    kernel divides by the entries of a page without a look at its sign.
    """
    before = {}
    for name, cache in seqs.caches.items():
        first = cache.pages[0] if isinstance(cache, PagedCache) else cache[0]
        before[name] = first.view(torch.uint8).fill_(UNTOUCHED)
        if isinstance(cache, PagedCache):
            seqs.caches[name] = PagedCache(cache.pages[1:], cache.format, cache.entries)
        else:
            seqs.caches[name] = cache[1:]
    for group, table in seqs.tables.items():
        seqs.spare[group] -= 1
        table -= 1
        own = int((table[0] != seqs.spare[group]).int().argmax())
        owner = (table == 0).nonzero()[0]
        table[tuple(owner)] = table[0, own]
        table[0, own] = 0
    return before


def _padded(trial: Trial, values: Values) -> Values:
    """A step with padding among its tokens; without what tells requests apart, which doesn't count padding."""
    request = torch.tensor(PADDED, device=trial.setting.device)
    padding = request < 0
    padded = {name: value for name, value in values.items() if name not in ("query_start", "seq_lens")}
    for name, nothing in NOTHING.items():
        value = values.get(name)
        if value is not None:
            fill = padding.view(-1, *[1] * (value.dim() - 1))
            padded[name] = value[request.clamp_min(0)].masked_fill(fill, nothing)
    return padded | {"x": trial.randn(len(PADDED), trial.shape.hidden_size)}
