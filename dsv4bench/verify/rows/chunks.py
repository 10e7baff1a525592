"""Rows about time: the same tokens in other chunks, with drafts rejected, or from a cached prefix, give the same."""

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import read_entries

from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import stage_arguments
from dsv4bench.verify.entries import WRITES
from dsv4bench.verify.sequences import Sequences
from dsv4bench.verify.trial import Trial

POISON = 0xFF
INSERTS = (
    "compressor_state_save",
    "compress_norm_rope_insert",
    "indexer_state_save",
    "indexer_compress_insert",
)
FEEDS = (
    "input_projection",
    "compressor_projection",
    "indexer_compressor_projection",
    "indexer_key_projection",
    "qkv_norm",
)
"""Stages whose outputs those that write caches read."""


def chunked_prefill(trial: Trial) -> None:
    """4,096 tokens and then 1,945 give the 1,510 entries of one shot, and so does every other split."""
    total = 601 if trial.setting.quick else 4096 + 1945
    rows = _state_inputs(trial, total)
    one_shot = _compress(trial, rows, [total], checked=False)
    for size in (128, 193) if trial.setting.quick else (512, 1945, 4096):
        entries = _compress(trial, rows, chunks(total, size), checked=size > total // 2)
        for stage, want in one_shot.items():
            count, right = int(entries[stage].isfinite().all(-1).sum()), total // trial.kind.ratio
            where = f"{count} entries of {total} tokens in chunks of {size}, expected {right}"
            trial.expect(stage, "number of entries", count == right, where)
            trial.same(stage, f"entries in chunks of {size}", entries[stage], want)


def micro_batches(trial: Trial) -> None:
    """One prompt at several micro-batch sizes fills the caches equally, and its last tokens come out equal."""
    total = 1040 if trial.setting.quick else 16_400
    sizes = (64, 256, 1024) if trial.setting.quick else (512, 4096, 16_384)
    outputs = {}
    for size in sizes:
        seqs = trial.sequences(requests=1, limit=total, poison=POISON)
        for count in chunks(total - 16, size):
            _fill_caches(trial, seqs.step([count]))
        values = seqs.step([16])
        trial.layer(values)
        outputs[size] = values["y"]
    for size in sizes[1:]:
        trial.same_layer(outputs[size], outputs[sizes[0]])


def _fill_caches(trial: Trial, values: Values) -> None:
    """Run, unchecked, the stages of a chunk that leave something in a cache, and those they depend on."""
    for stage in trial.stages:
        if stage.name not in WRITES and stage.name not in FEEDS:
            continue
        arguments = {parameter: values.get(tensor) for parameter, tensor in stage.inputs.items()}
        if stage.name == "query_norm_rope_insert":
            # queries are of no interest here, and on a CPU too many
            heads = 1 if trial.setting.device == "cpu" else trial.shape.num_heads
            arguments["q"] = values["kv"].new_ones(len(values["kv"]), heads, 512)
        values.update(zip(stage.outputs, trial.plain(stage.name, **arguments), strict=True))


def chunks(total: int, size: int) -> list[int]:
    """Lengths of the chunks that a prompt is cut into."""
    return [min(size, total - start) for start in range(0, total, size)]


def _state_inputs(trial: Trial, total: int) -> dict[str, torch.Tensor]:
    names = {"compressor_kv_score": 512} | ({"indexer_kv_score": 128} if trial.kind.has_indexer else {})
    coff = 2 if trial.kind.ratio == 4 else 1
    return {name: trial.randn(total, 2 * coff * dim, salt=dim, dtype=torch.float32) for name, dim in names.items()}


def _compress(
    trial: Trial, rows: dict[str, torch.Tensor], sizes: list[int], *, checked: bool
) -> dict[str, torch.Tensor]:
    """Entries [n, dim] by the stage that wrote them, after compressing rows chunk by chunk."""
    total = sum(sizes)
    seqs = trial.sequences(requests=1, limit=total, poison=POISON)
    for size in sizes:
        start = seqs.lens[0]
        values = seqs.step([size]) | {name: kv[start : start + size] for name, kv in rows.items()}
        for stage in trial.stages:
            if stage.name in INSERTS:
                run = trial.stage if checked else trial.plain
                run(stage.name, **stage_arguments(stage, values))
    slots = _entry_slots(seqs, total // trial.kind.ratio)
    return {
        stage: read_entries(cache, slots)
        for stage, name in (
            ("compress_norm_rope_insert", "compressed_cache"),
            ("indexer_compress_insert", "indexer_cache"),
        )
        if isinstance(cache := seqs.caches.get(name), PagedCache)
    }


def _entry_slots(seqs: Sequences, count: int, row: int = 0) -> torch.Tensor:
    per_page = 256 // seqs.kind.ratio
    index = torch.arange(count, device=seqs.device)
    return seqs.tables["full"][row].long()[index // per_page] * per_page + index % per_page


def rejected_drafts(trial: Trial) -> None:
    """Steps of 1 + k drafts of which some are rejected leave the state, entries and outputs of a run without drafts."""
    for start in (2,) if trial.setting.quick else (1, 2, 125, 126):
        for drafts in range(1, 6):
            _with_drafts(trial, start, drafts)


def _with_drafts(trial: Trial, start: int, drafts: int) -> None:
    """Reject k, k − 1, … 0 of k drafts step by step, then compare with decoding the same tokens one by one."""
    limit = start + (drafts + 1) * (drafts + 2)
    seqs = trial.sequences(requests=1, limit=limit, poison=POISON)
    truth = seqs.x.clone()
    trial.layer(seqs.step([start]))
    for rejected in range(drafts, -1, -1):
        end = seqs.lens[0] + drafts + 1
        seqs.x[0, end - rejected : end] += 3
        values = seqs.step([drafts + 1])
        trial.layer(values)
        seqs.x[0] = truth[0]
        seqs.rewind([rejected])
    plain = trial.sequences(requests=1, limit=limit, poison=POISON)
    for count in (start, *[1] * (seqs.lens[0] - start)):
        right = plain.step([count])
        trial.run(right)
    for name, stage in (("compressor_state", "compressor_state_save"), ("indexer_state", "indexer_state_save")):
        if name in seqs.caches:
            rows = (_open_window(which, name) for which in (seqs, plain))
            trial.same(stage, f"state after {drafts} drafts", *rows)
    trial.same_layer(values["y"][-1:], right["y"][-1:])


def _open_window(seqs: Sequences, name: str) -> torch.Tensor:
    """State rows of the window that the last token belongs to."""
    cache, last = seqs.caches[name], seqs.lens[0] - 1
    assert isinstance(cache, torch.Tensor)
    at = torch.arange(last // seqs.kind.ratio * seqs.kind.ratio, last + 1, device=seqs.device)
    return cache[seqs.tables["state"][0].long()[at // cache.shape[1]], at % cache.shape[1]]


def prefix_reuse(trial: Trial) -> None:
    """A prompt that shares another's first 256 tokens, over a poisoned state ring, comes out as if computed cold."""
    boundary, limit = 256, 272
    rest = limit - boundary
    seqs = _prefix_batch(trial, limit, boundary)
    trial.layer(seqs.step([boundary, 0, 0]))
    for group, table in seqs.tables.items():
        shared = {"full": slice(0, 1), "window": slice(2, 4), "state": slice(0, boundary // _state_block(seqs))}[group]
        table[1, shared] = table[0, shared]
    seqs.lens[1] = boundary
    warm = seqs.step([0, rest, 0])
    trial.layer(warm)
    other = seqs.step([rest, 0, 0])
    trial.layer(other)
    cold = seqs.step([0, 0, limit])
    trial.run(cold)
    trial.same_layer(warm["y"], cold["y"][boundary:])
    if trial.setting.quick:
        return
    alone = _prefix_batch(trial, limit, boundary)
    trial.run(alone.step([boundary, 0, 0]))
    untouched = alone.step([rest, 0, 0])
    trial.run(untouched)
    trial.same_layer(other["y"], untouched["y"])


def _prefix_batch(trial: Trial, limit: int, boundary: int) -> Sequences:
    """Request 0 has its own prompt; 1 and 2 have another that begins with the same tokens up to the boundary."""
    seqs = trial.sequences(requests=3, limit=limit, poison=POISON)
    seqs.x[1, :boundary] = seqs.x[0, :boundary]
    seqs.x[2] = seqs.x[1]
    return seqs


def _state_block(seqs: Sequences) -> int:
    state = seqs.caches["compressor_state"]
    assert isinstance(state, torch.Tensor)
    return int(state.shape[1])
