"""The conformance suite: which rows there are, and running them against a provider."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.base import Need, Provider, implemented_stages, support_of
from dsv4bench.verify.difference import Difference
from dsv4bench.verify.rows import addressing, attending, chunks, lengths, numerics, padding, selection
from dsv4bench.verify.sequences import small_shape
from dsv4bench.verify.stage_check import StageCheck
from dsv4bench.verify.trial import Setting, Trial, raised

V4 = (LayerKind.SWA, LayerKind.C4A, LayerKind.C128A)
COMPRESSED = (LayerKind.C4A, LayerKind.C128A)
INDEXED = (LayerKind.C4A, LayerKind.DSA)
ALL = (*V4, LayerKind.DSA)
INDEXER = ("indexer_query_rope_quant", "indexer_logits", "topk", "index_map")
COMPRESSOR = ("compressor_state_save", "compress_norm_rope_insert", "indexer_state_save", "indexer_compress_insert")
QUANTISING = (
    "query_norm_rope_insert",
    "compress_norm_rope_insert",
    "indexer_compress_insert",
    "inverse_rope_quant",
    "latent_insert",
    "indexer_key_insert",
)


def empty_rows(trial: Trial) -> None:
    """Tokens that see nothing: in attention itself, and as padding in a whole layer."""
    attending.empty_rows(trial)
    padding.padding_tokens(trial)


class Status(StrEnum):
    """How a row ended."""

    PASS = "pass"
    FAIL = "fail"
    DEVIATION = "deviation"
    """Failed only by documented deviations that were allowed by name."""
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Row:
    """One row of the conformance table.

    Attributes:
        number: as in the specification.
        name: short, unique, usable on a command line.
        reported: where the fault was reported.
        kinds: layer kinds that it concerns.
        check: the trial.
        stages: stages that it is about; empty means all of the layer's.
    """

    number: int
    name: str
    reported: str
    kinds: tuple[LayerKind, ...]
    check: Callable[[Trial], None]
    stages: tuple[str, ...] = ()

    def stages_of(self, kind: LayerKind) -> tuple[str, ...]:
        """Names of the layer's stages that the row is about."""
        names = tuple(stage.name for stage in STAGES[kind])
        return tuple(name for name in names if not self.stages or name in self.stages)


ROWS = (
    Row(1, "boundary-lengths", "an NPU port", ALL, lengths.boundary_lengths),
    Row(2, "own-entry", "vllm#55927", COMPRESSED, lengths.own_entry),
    Row(3, "visible-groups", "tpu-inference#3536", COMPRESSED, lengths.visible_groups),
    Row(4, "chunked-prefill", "mlx-lm#1189", COMPRESSED, chunks.chunked_prefill, COMPRESSOR),
    Row(5, "window-edge", "several", V4, lengths.window_edge),
    Row(6, "invalid-indices", "NeMo Automodel#2152", ALL, attending.invalid_indices, ("sparse_attention",)),
    Row(7, "empty-rows", "pypto-lib#234", ALL, empty_rows, padding.STAGES),
    Row(8, "planar-scales", "vllm#50576", INDEXED, selection.planar_scales),
    Row(9, "packed-slabs", "vllm#47783", ALL, addressing.packed_slabs),
    Row(10, "far-blocks", "vllm#52109, sglang#40351", ALL, addressing.far_blocks),
    Row(11, "zero-contexts", "DeepGEMM#344, #353, #354", INDEXED, selection.zero_contexts, INDEXER),
    Row(12, "short-contexts", "Infatoshi (fork)", INDEXED, selection.short_contexts, ("topk", "index_map")),
    Row(13, "tile-edges", "sm89 fork#110", INDEXED, selection.tile_edges, INDEXER),
    Row(14, "identical-requests", "vllm#41331, ATOM#736", ALL, attending.identical_requests),
    Row(15, "rejected-drafts", "vllm-ascend#131, antirez/ds4#750", COMPRESSED, chunks.rejected_drafts),
    Row(16, "prefix-reuse", "ATOM#1417, vllm-ascend#10296", COMPRESSED, chunks.prefix_reuse),
    Row(17, "garbage", "Infatoshi, vllm#51252", ALL, addressing.garbage),
    Row(18, "alone-and-in-batch", "FlashMLA#212", ALL, attending.alone_and_in_batch, ("sparse_attention",)),
    Row(
        19, "pro-topk", "antirez/ds4#471", (LayerKind.C4A,), selection.pro_topk,
        ("topk", "index_map", "sparse_attention"),
    ),
    Row(20, "rotary-tables", "specification 9.3", ALL, numerics.rotary_tables),
    Row(21, "micro-batches", "llama.cpp#26471", ALL, chunks.micro_batches),
    Row(22, "exact-scales", "own", ALL, numerics.exact_scales, QUANTISING),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a row for one layer kind.

    Attributes:
        row: the row.
        setting: with what it was tried.
        status: how it ended.
        stages: the provider's stages that were checked.
        checks: everything that was compared.
        reason: why it was skipped, or what is wrong.
        failed_call: stage name and arguments of the first call whose check failed.
        notes: facts that are neither right nor wrong.
        seconds: how long it took.
        saved: file with the inputs of a failure.
    """

    row: Row
    setting: Setting
    status: Status
    stages: tuple[str, ...] = ()
    checks: tuple[StageCheck, ...] = ()
    reason: str = ""
    failed_call: tuple[str, dict[str, Any]] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    saved: Path | None = None

    @property
    def worst(self) -> Difference | None:
        """The difference furthest beyond (or nearest to) its tolerance."""
        return max((check.worst for check in self.checks), key=lambda d: d.severity, default=None)


def select_rows(only: Sequence[str]) -> tuple[Row, ...]:
    """Rows by number, name, or name of a stage that they are about; all when nothing is asked for.

    Raises:
        UserError: a word that matches no row.
    """
    chosen: list[Row] = []
    for word in only:
        found = [
            row
            for row in ROWS
            if word in (str(row.number), row.name) or any(word in row.stages_of(kind) for kind in row.kinds)
        ]
        if not found:
            names = ", ".join(f"{row.number} {row.name}" for row in ROWS)
            raise UserError(f"--only {word} is neither a row nor a stage; rows: {names}")
        chosen += [row for row in found if row not in chosen]
    return tuple(sorted(chosen, key=lambda row: row.number)) if only else ROWS


def row_numbered(number: int) -> Row:
    """The row of a number.

    Raises:
        KeyError: there is none.
    """
    return {row.number: row for row in ROWS}[number]


def run_row(provider: Provider, row: Row, setting: Setting, *, allow: frozenset[str] = frozenset()) -> Outcome:
    """Try one row with one setting."""
    stages = tuple(name for name in row.stages_of(setting.kind) if name in implemented_stages(provider))
    if not stages:
        return Outcome(row, setting, Status.SKIPPED, reason="the provider has none of its stages")
    support = support_of(provider, need_of(provider, setting, stages))
    if not support.ok:
        return Outcome(row, setting, Status.SKIPPED, stages, reason=support.reason)
    trial = Trial(provider, setting)
    began = time.perf_counter()
    with torch.no_grad():
        try:
            row.check(trial)
        except (Exception, SystemExit) as error:  # what a provider returned can break whatever runs on it
            trial.checks.append(raised("layer", error))
    seconds = time.perf_counter() - began
    checks, notes = tuple(trial.checks), tuple(trial.notes)
    status, reason = _judge(checks, allow)
    seen = {check.stage for check in checks}
    if not checks:
        return Outcome(row, setting, Status.SKIPPED, stages, reason="nothing to compare in this precision")
    checked = tuple(stage.name for stage in STAGES[setting.kind] if stage.name in seen)
    return Outcome(row, setting, status, checked, checks, reason, trial.failed_call, notes, seconds)


def need_of(provider: object, setting: Setting, stages: tuple[str, ...] | None = None) -> Need:
    """What a setting asks of a provider: these stages, or all that it has of the layer."""
    have = implemented_stages(provider)
    return Need(
        kind=setting.kind,
        stages=tuple(s.name for s in STAGES[setting.kind] if s.name in have) if stages is None else stages,
        device=torch.device(setting.device).type,
        main=setting.precision.main,
        indexer=setting.precision.indexer,
        num_heads=small_shape(setting.kind, setting.device).num_heads,
        phase="mixed",
    )


def _judge(checks: tuple[StageCheck, ...], allow: frozenset[str]) -> tuple[Status, str]:
    """Status and reason: a failure that isn't an allowed deviation decides, then the worst one."""
    wrong = [(check, d) for check in checks for d in check.differences if not d.ok]
    if not wrong:
        return Status.PASS, ""
    real = [(check, d) for check, d in wrong if d.deviation not in allow]
    check, difference = max(real or wrong, key=lambda pair: pair[1].severity)
    reason = f"{check.stage}: {difference.sentence}"
    if not real:
        return Status.DEVIATION, f"{difference.deviation}: {reason}"
    if difference.deviation:
        reason += f" (deviation {difference.deviation}; --allow {difference.deviation} lets it pass)"
    return Status.FAIL, reason
