"""Rows about sequence lengths: which entries exist at a length and who sees them."""

from dataclasses import replace

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import record_view, write_entries

from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import stage_arguments
from dsv4bench.verify.difference import LAYER_TOLERANCE
from dsv4bench.verify.selection import judge_selection
from dsv4bench.verify.sequences import Sequences
from dsv4bench.verify.stage_check import TOKEN_PARAMETERS
from dsv4bench.verify.trial import Trial

QUICK = (*range(10), 129)
PREFILLED = (*range(10), *range(126, 132), 257, 513)
"""Lengths to prefill from nothing; each also has every shorter length inside it."""
STEPPED = (255, 256, 257, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097)
"""Lengths to end a decode step at, over caches that are already full."""
POISON = 0xFF
EDGE = 126
"""First query around which the window begins to slide."""


def boundary_lengths(trial: Trial) -> None:
    """Prefill requests of the boundary lengths at once, then step over longer ones; compare whole layers too."""
    lengths = QUICK if trial.setting.quick else PREFILLED
    seqs = trial.sequences(requests=len(lengths), limit=max(lengths), poison=POISON)
    values = seqs.step(lengths)
    trial.layer(values)
    if not trial.setting.quick:
        _whole_layer(trial, values, lengths)
    for cache, stage in (
        ("compressed_cache", "compress_norm_rope_insert"),
        ("indexer_cache", "indexer_compress_insert"),
    ):
        if cache in seqs.caches and trial.kind.compresses:
            _entries_exist(trial, seqs, cache, stage)
    seqs = trial.sequences(requests=len(STEPPED), limit=STEPPED, start=[n - 2 for n in STEPPED])
    trial.layer(seqs.step([2] * len(STEPPED)))


def _whole_layer(trial: Trial, values: Values, lengths: tuple[int, ...]) -> None:
    """The layer's output against the reference's own run from empty caches."""
    seqs = trial.sequences(requests=len(lengths), limit=max(lengths), poison=POISON)
    right = Trial(object(), trial.setting)
    own = seqs.step(lengths)
    names = [stage.name for stage in trial.stages]
    if trial.kind.has_indexer:
        selected = names.index("topk") + 1
        right.layer(own, names[:selected])
        own["topk_indices"] = _settled(values, own)
        right.layer(own, names[selected:])
    else:
        right.layer(own)
    if trial.implemented & {stage.name for stage in trial.stages}:
        trial.same_layer(values["y"], own["y"])


def _settled(values: Values, own: Values) -> torch.Tensor:
    """The reference's selection or, in rows where they differ by what bf16 may swap at the edge, the provider's.

    Logits of two right layers differ by their roundings so far, and one entry more or less of few changes the output by
    far more than roundings do. That each selection is right for its own logits, the stage's check says.
    """
    chosen = values["topk_indices"]
    by_own_logits = judge_selection(chosen.long(), own["logits"], own["candidate_lens"])
    close = by_own_logits.complete & (by_own_logits.beaten <= LAYER_TOLERANCE)
    return torch.where(close[:, None], chosen, own["topk_indices"])


def _entries_exist(trial: Trial, seqs: Sequences, name: str, stage: str) -> None:
    """Exactly the entries of completed windows were written over the poison."""
    cache = seqs.caches[name]
    assert isinstance(cache, PagedCache)
    records = record_view(cache)
    for row, length in enumerate(seqs.lens):
        pages = seqs.tables["full"][row, : -(-seqs.limit // 256)].long()
        written = (records[pages] != POISON).any(-1).flatten()
        count, right = int(written.sum()), length // trial.kind.ratio
        ok = count == right and bool(written[:right].all())
        trial.expect(
            stage, f"entries of {length} tokens", ok, f"{count} entries after {length} tokens, expected {right}"
        )


def own_entry(trial: Trial) -> None:
    """The entry that a token completes is visible to that token, deep inside a long context."""
    base = 2_048 if trial.setting.quick else 57_216
    lens = [base + i for i in range(4)] if trial.kind.ratio == 4 else [base - 1, base, base + 1]
    seqs = trial.sequences(requests=len(lens), limit=max(lens), start=[n - 1 for n in lens])
    values = seqs.step([1] * len(lens))
    if not trial.kind.has_indexer:
        trial.layer(values)
        return
    names = [stage.name for stage in trial.stages]
    trial.layer(values, trial.between(names[0], "indexer_logits"))
    newest = values["candidate_lens"].long() - 1
    logits = values["logits"].clone()
    visible = torch.arange(logits.shape[1], device=logits.device) <= newest[:, None]
    best = torch.where(visible, logits, -torch.inf).amax(1) + 1
    values["logits"] = logits.scatter(1, newest[:, None], best[:, None])
    trial.layer(values, trial.between("topk", names[-1]))
    chosen = (values["topk_indices"] == newest[:, None]).any(1)
    trial.expect("topk", "newest entry", bool(chosen.all()), "the entry that a token completes is not selected")


def visible_groups(trial: Trial) -> None:
    """Query q sees exactly (q + 1) // m entries: never its own incomplete group, never fewer than are complete."""
    shape = replace(trial.shape, index_topk=128 if trial.setting.device == "cpu" else trial.shape.index_topk)
    tokens = 261
    seqs = trial.sequences(requests=1, limit=tokens, shape=shape, poison=POISON)
    values = seqs.step([tokens])
    trial.layer(values)
    if trial.kind.has_indexer:
        chosen = values["topk_indices"].cpu()
        for q in range(tokens):
            count = (q + 1) // trial.kind.ratio
            right = sorted(chosen[q].tolist()) == [-1] * (shape.index_topk - count) + list(range(count))
            trial.expect("topk", "visible groups", right, f"query {q} must see entries 0…{count - 1} and no other")


def window_edge(trial: Trial) -> None:
    """The oldest key leaves the window exactly when the 129th token arrives, and a token is inside its own window."""
    seqs = trial.sequences(requests=1, limit=131)
    values = seqs.step([131])
    trial.layer(values)
    first = _changed_by(trial, values, 0)
    trial.expect("sparse_attention", "window", first == [126, 127], f"key 0 is seen by {_span(first)} of 126…130")
    for position in (126, 127, 128, 129, 130):
        seen = _changed_by(trial, values, position)
        right = list(range(position, 131))
        trial.expect(
            "sparse_attention",
            "window",
            seen == right,
            f"key {position} is seen by {_span(seen)}, expected {_span(right)}",
        )


def _changed_by(trial: Trial, values: Values, position: int) -> list[int]:
    """Queries from ``EDGE`` on whose output changes with the key at a position."""
    stage = next(stage for stage in trial.stages if stage.name == "sparse_attention")
    arguments = {
        name: value[EDGE:] if name in TOKEN_PARAMETERS and value is not None else value
        for name, value in stage_arguments(stage, values).items()
    }
    before = trial.plain("sparse_attention", **arguments)[0]
    cache, slot = values["window_cache"], values["window_slots"][position : position + 1]
    changed = PagedCache(cache.pages.clone(), cache.format, cache.entries)
    write_entries(changed, slot, trial.randn(1, 512, salt=position, dtype=torch.float32) * 4)
    after = trial.plain("sparse_attention", **(arguments | {"window_cache": changed}))[0]
    changed_rows: list[int] = torch.nonzero((before != after).flatten(1).any(1)).flatten().tolist()
    return [EDGE + row for row in changed_rows]


def _span(queries: list[int]) -> str:
    return f"{queries[0]}…{queries[-1]}" if queries else "nobody"
