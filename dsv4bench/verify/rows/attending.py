"""Rows about sparse attention itself: invalid indices, empty rows, batches and repetition."""

from functools import partial
from typing import Any

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.model.schedule import SCHEDULES, make_schedule
from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.eager import EagerProvider
from dsv4bench.stack.graph import capture_layer
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import run_layer, stage_arguments
from dsv4bench.stack.streams import run_schedule
from dsv4bench.verify.sequences import Sequences
from dsv4bench.verify.trial import Trial

FREE_ORDER = frozenset({"indexer_logits", "topk", "index_map"})
"""Stages whose outputs may differ in order, or in columns that nobody reads."""


def _arguments(trial: Trial, contexts: tuple[int, ...]) -> dict[str, Any]:
    """Keyword arguments of sparse attention for one decode token per context."""
    seqs = trial.sequences(requests=len(contexts), limit=max(contexts), start=[n - 1 for n in contexts])
    values = seqs.step([1] * len(contexts))
    if trial.kind.has_indexer:
        lens = values["candidate_lens"].clamp_max(trial.shape.index_topk)
        column = torch.arange(trial.shape.index_topk, device=lens.device)
        chosen = torch.where(column < lens[:, None], column, -1).int().expand(len(lens), -1)
        slots, count = trial.plain(
            "index_map",
            topk_indices=chosen,
            token_to_request=values["token_to_request"],
            block_table=values["block_table"],
            entries=values["compressed_entries"],
        )
        values |= {"compressed_indices": slots, "compressed_lens": count}
    dim = 576 if trial.kind is LayerKind.DSA else 512
    values["q_rotated"] = trial.randn(len(contexts), trial.shape.num_heads, dim, salt=1)
    stage = next(stage for stage in trial.stages if stage.name == "sparse_attention")
    return stage_arguments(stage, values)


def invalid_indices(trial: Trial) -> None:
    """−1 before valid indices contributes nothing, and the slot it would clamp to counts once."""
    arguments = _arguments(trial, (5, 127, 300, 700))
    right = trial.plain("sparse_attention", **arguments)[0]
    for name in ("window", "compressed"):
        indices = arguments[f"{name}_indices"]
        if indices is None:
            continue
        lens = arguments[f"{name}_lens"]
        gap = torch.full_like(indices[:, :1], -1)
        shifted = torch.cat((gap, indices[:, :-1]), dim=1)
        room = lens < indices.shape[1]
        changed = {
            f"{name}_indices": torch.where(room[:, None], shifted, indices),
            f"{name}_lens": lens + room.int(),
        }
        out = trial.stage("sparse_attention", **(arguments | changed))[0]
        trial.same("sparse_attention", f"{name} indices after a −1", out, right)


def empty_rows(trial: Trial) -> None:
    """A token that sees nothing gets zeros and an LSE of −inf, with or without a sink, beside tokens that see much."""
    arguments = _arguments(trial, (40, 300, 700))
    nothing = {
        "length 0": {k: torch.zeros_like(v) for k, v in arguments.items() if k.endswith("_lens") and v is not None},
        "all −1": {k: torch.full_like(v, -1) for k, v in arguments.items() if k.endswith("_indices") and v is not None},
    }
    sinks: dict[str, Any] = {"": {}}
    if arguments["sink"] is not None:
        sinks |= {
            " with a sink of −inf": {"sink": torch.full_like(arguments["sink"], -torch.inf)},
            # of 16 and more, fp32 rounds the exponent by as much as is allowed
            " with a large sink": {"sink": torch.full_like(arguments["sink"], 15.0)},
        }
    for what, empty in nothing.items():
        for note, sink in sinks.items():
            _expect_empty(trial, arguments | empty | sink, slice(None), what + note)
            mixed = {key: torch.cat((v[:1], arguments[key][1:])) for key, v in empty.items()}
            _expect_empty(trial, arguments | mixed | sink, slice(0, 1), f"{what} beside others{note}")


def _expect_empty(trial: Trial, arguments: dict[str, Any], rows: slice, what: str) -> None:
    out, lse = trial.stage("sparse_attention", **arguments)
    empty = bool((out[rows] == 0).all()) and bool((lse[rows] == -torch.inf).all())
    trial.expect("sparse_attention", "empty row", empty, f"{what}: o must be 0 and lse −inf")


def identical_requests(trial: Trial) -> None:
    """Sixteen identical requests come out bitwise equal, and again; on a GPU also on several streams and from graphs.

    What a graph or another schedule changes is compared with the serial launch, bit by bit.
    """
    requests, prompt = 16, 140
    seqs = trial.sequences(requests=requests, limit=prompt + 1)
    seqs.x[:] = seqs.x[:1].clone()
    trial.layer(seqs.step([prompt] + [0] * (requests - 1)))
    _copy_first(seqs)
    inputs = seqs.step([1] * requests)
    values = dict(inputs)
    trial.layer(values)
    _expect_equal_rows(trial, values)
    again = dict(inputs)
    trial.run(again)
    _expect_same_bits(trial, again, values, "a second run on the same input")
    if trial.setting.device != "cpu":
        _on_streams_and_graphs(trial, inputs)


def _on_streams_and_graphs(trial: Trial, inputs: Values) -> None:
    """Every schedule, launched and from a graph, against the serial one."""
    owners = stage_owners(trial)
    serial = dict(inputs)
    run_layer(trial.stages, owners, serial)
    capturable = all(getattr(owner, "capturable", True) for owner in owners.values())
    if not capturable:
        trial.notes.append("the provider can't be captured in a CUDA graph")
    for name in SCHEDULES:
        schedule = make_schedule(name, trial.kind, tokens=len(inputs["positions"]))
        launched = dict(inputs)
        run_schedule(schedule, owners, launched)
        torch.cuda.synchronize()
        _expect_same_bits(trial, launched, serial, f"schedule {name}")
        if capturable:
            run = partial(run_schedule, schedule, owners)
            replayed = capture_layer(run, dict(inputs)).replay(inputs)
            torch.cuda.synchronize()
            _expect_same_bits(trial, replayed, serial, f"a CUDA graph of schedule {name}")


def stage_owners(trial: Trial) -> dict[str, object]:
    """Who runs each stage: the eager provider those that the provider lacks or refused so far."""
    own, filler = trial.implemented - trial.refused, EagerProvider()
    return {stage.name: trial.provider if stage.name in own else filler for stage in trial.stages}


def _expect_same_bits(trial: Trial, values: Values, right: Values, how: str) -> None:
    for stage in trial.stages:
        if stage.outputs and stage.name not in FREE_ORDER:
            name = stage.outputs[0]
            same = _bitwise(values[name], right[name])
            trial.expect(stage.name, "repetition", same, f"{how} gives other bits")


def _copy_first(seqs: Sequences) -> None:
    """Give every request a copy of the first one's pages."""
    for name, cache in seqs.caches.items():
        raw = cache.pages if isinstance(cache, PagedCache) else cache
        table = seqs.tables[seqs.groups[name]].long()
        raw[table[1:]] = raw[table[:1]].clone()
    seqs.lens = [seqs.lens[0]] * len(seqs.lens)


def _expect_equal_rows(trial: Trial, values: Values) -> None:
    for stage in trial.stages:
        if stage.outputs and stage.name not in FREE_ORDER:
            rows = values[stage.outputs[0]]
            differing = [r for r in range(1, len(rows)) if not _bitwise(rows[r], rows[0])]
            where = f"requests {differing} differ from request 0, though all are identical"
            trial.expect(stage.name, "equal requests", not differing, where)


def _bitwise(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def alone_and_in_batch(trial: Trial) -> None:
    """A row alone gives what it gives in a batch; bitwise equality is reported, not demanded."""
    contexts = (4, 129, 300, 513, 1024)
    arguments = _arguments(trial, contexts)
    together = trial.stage("sparse_attention", **arguments)
    bitwise = True
    tokens = ("q", "window_indices", "window_lens", "compressed_indices", "compressed_lens")
    for row in range(len(contexts)):
        one = {k: v[row : row + 1] if k in tokens and v is not None else v for k, v in arguments.items()}
        alone = trial.stage("sparse_attention", **one)
        trial.same("sparse_attention", f"row {row} alone", alone[0], together[0][row : row + 1])
        bitwise &= _bitwise(alone[0], together[0][row : row + 1])
    if not bitwise and "sparse_attention" in trial.implemented:
        trial.notes.append("a row alone is not bitwise what it is in a batch")
