"""Memory a budget must leave beside the cache: what follows from the model is computed, the rest is an input.

CUDA-graph pools, activations and weights cannot be derived from an attention stack; they are printed as given, or as
not counted, never guessed.
"""

from dataclasses import dataclass

from dsv4bench.memory.deployment import Deployment
from dsv4bench.model.shape import ModelShape

LOGITS_PAD = 256
GATHER_REQUESTS = 4
GATHER_ROW_BYTES = 1024
"""A gathered bf16 row: 512 elements."""


@dataclass(frozen=True)
class Workspace:
    """A line of the budget.

    Attributes:
        name: what it is.
        bytes: its size; None where it was not given and cannot be computed.
        how: the formula with its numbers, ``as given`` or what to give.
    """

    name: str
    bytes: int | None
    how: str


def indexer_logits_bytes(shape: ModelShape, rows: int, context: int) -> int:
    """fp32 logits of ``rows`` query tokens over every candidate of ``context`` tokens, outside the cache pool."""
    return rows * _logit_columns(shape, context) * 4


def prefill_gather_bytes(shape: ModelShape, context: int, batched_tokens: int) -> int:
    """bf16 workspace that prefill gathers compressed and window entries into: four requests of M rows."""
    return GATHER_REQUESTS * _gather_rows(shape, context, batched_tokens) * GATHER_ROW_BYTES


def computed_workspaces(deployment: Deployment) -> tuple[Workspace, ...]:
    """The workspaces that follow from model, context and step size."""
    shape, context, rows = deployment.shape, deployment.max_model_len, deployment.max_num_batched_tokens
    lines = []
    if any(kind.has_indexer for kind in shape.layers):
        how = f"{rows:,} rows · {_logit_columns(shape, context):,} candidates · 4 B, if not chunked"
        lines.append(Workspace("indexer logits", indexer_logits_bytes(shape, rows, context), how))
    if shape.is_v4:
        m = _gather_rows(shape, context, rows)
        size = prefill_gather_bytes(shape, context, rows)
        lines.append(Workspace("prefill gather", size, f"{GATHER_REQUESTS} · {m:,} rows · {GATHER_ROW_BYTES:,} B"))
    return tuple(lines)


def _logit_columns(shape: ModelShape, context: int) -> int:
    ratio = 4 if shape.is_v4 else 1
    return -(-(context // ratio) // LOGITS_PAD) * LOGITS_PAD


def _gather_rows(shape: ModelShape, context: int, batched_tokens: int) -> int:
    """M: compressed entries of the longest request, and its window entries with the tokens of the chunk."""
    compressed = max((context // kind.ratio for kind in shape.layers if kind.compresses), default=0)
    return compressed + min(context, shape.sliding_window - 1 + batched_tokens)
