"""The scenario YAML as a pydantic model; its docstrings are the text of the JSON Schema that editors show."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGE_NAMES
from dsv4bench.scenario.lengths import ContextMix
from dsv4bench.scenario.requests import MOST_REQUESTS, parse_requests
from dsv4bench.scenario.sizes import parse_tokens


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _tokens(value: Any) -> Any:
    try:
        return parse_tokens(value, "tokens")
    except UserError as error:
        raise ValueError(str(error)) from error


Tokens = Annotated[int, BeforeValidator(_tokens, json_schema_input_type=int | str), Field(ge=1)]
"""A token count: an integer, or 8K = 8192, 8k = 8000, 1M = 1,048,576."""


def _prefix(value: Any) -> Any:
    return 0 if value == 0 and not isinstance(value, bool) else _tokens(value)


Prefix = Annotated[int, BeforeValidator(_prefix, json_schema_input_type=int | str), Field(ge=0)]
"""A token count that may be 0."""


def _axis(json_type: Any) -> BeforeValidator:
    return BeforeValidator(_as_list, json_schema_input_type=json_type | list[json_type])


Names = Annotated[list[str], _axis(str), Field(min_length=1)]
Integer = Annotated[int, Field(strict=True)]
"""An integer as YAML reads it: not ``'3'``, not ``true``."""
Counts = Annotated[list[Annotated[Integer, Field(ge=1)]], _axis(int), Field(min_length=1)]
TokenCounts = Annotated[list[Tokens], _axis(int | str), Field(min_length=1)]
Flags = Annotated[list[bool], _axis(bool), Field(min_length=1)]
Phase = Literal["decode", "prefill"]
Boundary = Literal["spread", "all", "none", "c4a"]
IndexPattern = Literal["random", "recent", "clustered"]
MainPrecision = Literal["fp8", "bf16", "fp32"]
IndexerPrecision = Literal["fp8", "fp4", "bf16", "fp32"]
WeightPrecision = Literal["bf16", "fp8"]
Streams = Literal["serial", "multi", "multi3"]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, docstrings of attributes are descriptions."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, defer_build=True)


class ContextSection(Section):
    """Mixed context lengths within a batch, at the quantiles of a distribution."""

    distribution: Literal["lognormal", "uniform"]
    """``lognormal`` (by median and sigma, cut at min and max) or ``uniform`` between min and max."""
    median: Tokens | None = None
    """Length that half of the requests stay below."""
    sigma: Annotated[float, Field(gt=0, le=5)] = 1.0
    """Standard deviation of the logarithm; 1 puts about two thirds within a factor of e of the median."""
    min: Tokens = 128
    """Shortest length."""
    max: Tokens = 1_048_576
    """Longest length."""

    @model_validator(mode="after")
    def _consistent(self) -> "ContextSection":
        if (self.distribution == "lognormal") != (self.median is not None):
            raise ValueError("'median' belongs to distribution: lognormal, which needs it")
        if not self.min <= (self.median or self.max) <= self.max:
            raise ValueError("min, median and max have to be in this order")
        return self

    @property
    def mix(self) -> ContextMix:
        """As the workload holds it."""
        sigma = self.sigma if self.median else 0.0
        return ContextMix(self.distribution, self.min, self.max, self.median or 0, sigma)


def _batch_text(value: str) -> str:
    try:
        parse_requests(value)
    except UserError as error:
        raise ValueError(str(error)) from error
    return value


CONTEXT_TAGS = ("one length", "mixed lengths")
PROVIDER_TAGS = ("one provider", "providers by stage")
TAGS = (*CONTEXT_TAGS, *PROVIDER_TAGS)
"""What tells the two forms of a context or a provider apart in an error's location; not for the user's eyes."""
Context = Annotated[
    Annotated[Tokens, Tag(CONTEXT_TAGS[0])] | Annotated[ContextSection, Tag(CONTEXT_TAGS[1])],
    Discriminator(lambda value: CONTEXT_TAGS[isinstance(value, dict | ContextSection)]),
]


class WorkloadSection(Section):
    """Which requests a step holds. Every list is an axis of the grid."""

    phase: Annotated[list[Phase], _axis(Phase), Field(min_length=1)] = ["decode"]
    """``decode`` (one query token per request unless query_len says more) or ``prefill``."""
    batch: Annotated[list[Annotated[Integer, Field(ge=1, le=MOST_REQUESTS)]], _axis(int), Field(min_length=1)] = [1]
    """Requests in the step."""
    context: Annotated[list[Context], _axis(int | str | ContextSection), Field(min_length=1)] | None = None
    """Sequence length after the step, as vLLM's seq_lens: 8K = 8192, 1M = 1,048,576; or a distribution of them."""
    prefix: Annotated[list[Prefix], _axis(int | str), Field(min_length=1)] | None = None
    """Instead of context: tokens already in the cache, so that context is prefix + query_len."""
    requests: Annotated[list[Annotated[str, AfterValidator(_batch_text)]], _axis(str), Field(min_length=1)] | None = (
        None
    )
    """Instead of batch, context, query_len and phase: a batch in vLLM's grammar, 64q1s128k_2q2ks2k (here k is 1024)."""
    query_len: TokenCounts | None = None
    """Query tokens per request; default 1 for decode and the whole context for prefill."""
    boundary: Annotated[list[Boundary], _axis(Boundary), Field(min_length=1)] = ["spread"]
    """Who completes a compressed entry in this step: a mix of requests, all, none, or all in c4a layers alone."""
    index_pattern: Annotated[list[IndexPattern], _axis(IndexPattern), Field(min_length=1)] = ["random"]
    """Which entries the indexer is taken to select: random, the most recent ones, or clusters of 16 neighbours."""

    @model_validator(mode="after")
    def _one_way_to_say_lengths(self) -> "WorkloadSection":
        given = [name for name in ("context", "prefix", "requests") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of context, prefix and requests, got {' and '.join(given) or 'none'}")
        twice = [
            name
            for name, default in (("batch", [1]), ("phase", ["decode"]), ("query_len", None))
            if getattr(self, name) != default
        ]
        if self.requests and twice:
            raise ValueError(f"requests says all of the batch; leave out {', '.join(twice)}")
        if self.prefix and self.query_len is None and "prefill" in self.phase:
            raise ValueError("prefix needs query_len, the length of the chunk, for phase: prefill")
        return self


class CacheSection(Section):
    """Cache precisions."""

    main: Annotated[list[MainPrecision], _axis(MainPrecision), Field(min_length=1)] = ["fp8"]
    """Window and compressed caches: fp8 (584 B an entry), bf16 (1,024 B) or fp32 (for exact comparisons)."""
    indexer: Annotated[list[IndexerPrecision], _axis(IndexerPrecision), Field(min_length=1)] = ["fp8"]
    """Indexer cache: fp8 (132 B an entry), fp4 (68 B), bf16 or fp32."""
    slab: Flags = [True]
    """Interleave the pages of a layer's caches in one slab, as an engine allocates them."""


class WeightsSection(Section):
    """Weights of the projections."""

    precision: Annotated[list[WeightPrecision], _axis(WeightPrecision), Field(min_length=1)] = ["bf16"]
    """Large projections: bf16, or fp8 with a scale per 128 x 128 block and activations scaled per 128."""
    checkpoint: str | None = None
    """Directory of safetensors to read a layer from; default: random weights."""
    layer: Annotated[Integer, Field(ge=0)] | None = None
    """Which layer of the checkpoint; its kind is the only one measured."""

    @model_validator(mode="after")
    def _both_or_none(self) -> "WeightsSection":
        if (self.checkpoint is None) != (self.layer is None):
            raise ValueError("checkpoint and layer go together")
        return self


class ScheduleSection(Section):
    """How stages are launched."""

    streams: Annotated[list[Streams], _axis(Streams), Field(min_length=1)] = ["serial"]
    """``serial``, ``multi`` (the indexer on a stream of its own) or ``multi3`` (three auxiliary streams)."""
    graph: Flags = [False]
    """Replay the layer from a CUDA graph."""


class TimingSection(Section):
    """How time is taken."""

    timer: Literal["auto", "wall", "events", "graph", "cupti"] = "auto"
    """``auto`` is ``wall`` on a CPU and ``events`` (``graph`` for graph cases) on a GPU."""
    l2: Literal["auto", "none", "warm", "cold"] = "auto"
    """State of the L2 cache before each call; ``auto`` is ``none`` on a CPU and ``warm`` on a GPU."""
    flush: Literal["read_sweep", "memset"] = "read_sweep"
    """How a cold L2 is made."""
    rounds: Annotated[Integer, Field(ge=1, le=1000)] = 10
    """Rounds; in each, every side of a comparison runs once, in random order, on fresh inputs."""
    iterations: Annotated[Integer, Field(ge=1, le=100_000)] = 20
    """Timed calls per round; fewer, but at least 3, where they would take over a quarter of a second."""
    warmup: Annotated[Integer, Field(ge=0, le=10_000)] = 3
    """Untimed calls before them."""
    seed: Annotated[Integer, Field(ge=0, lt=2**63)] = 0
    """Base seed of weights, inputs and the order of rounds."""
    timeout: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 600.0
    """Seconds after which a case is killed."""
    energy: bool = True
    """On a GPU, measure the energy of a step in a pass of its own, about 0.3 s a case."""
    gaps: bool | None = None
    """On a GPU, profile each case once after everything was timed and store how long the device idles between kernels;
    default: true for kind: layer, false for the others."""


class BaselineSection(Section):
    """What speedups are over: two columns."""

    provider: str | None = None
    """Provider that the others are compared with."""
    model: str | None = None
    """Model whose layer the others are compared with, usually v3.2."""


ProviderEntry = Annotated[
    Annotated[str, Tag(PROVIDER_TAGS[0])] | Annotated[dict[str, str], Tag(PROVIDER_TAGS[1])],
    Discriminator(lambda value: PROVIDER_TAGS[isinstance(value, dict)]),
]


def _from_here(entry: ProviderEntry) -> ProviderEntry:
    """A provider's file by its path from the working directory: a case's id is the same wherever that lies."""
    if isinstance(entry, dict):
        return {key: str(_from_here(name)) for key, name in entry.items()}
    path, here = Path(entry), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else entry


class Scenario(Section):
    """A scenario: a grid of cases and how to time them."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    """Lower-case name; run directories carry it."""
    description: str = ""
    """What the scenario shows."""
    kind: Literal["layer", "stage", "model", "memory"] = "layer"
    """``layer`` times whole layers and each stage, ``stage`` only the stages named, ``model`` the attention of every
    layer of a model one after another, ``memory`` accounts KV bytes."""
    model: Names
    """Presets (v4-pro, v4-flash, v3.2), their published names, or paths to a Hugging Face config.json."""
    layers: Annotated[list[LayerKind], _axis(LayerKind), Field(min_length=1)] | None = None
    """Layer kinds; default: every kind of each model. dsa always has the V3.2 shape."""
    stages: Names | None = None
    """Stages of ``kind: stage``."""
    copies: Annotated[Integer, Field(ge=1)] = 2
    """Of ``kind: model``: distinct sets of weights and caches per layer kind; its layers take them in turn."""
    workload: WorkloadSection
    """The steps."""
    cache: CacheSection = CacheSection()
    """Cache precisions."""
    weights: WeightsSection = WeightsSection()
    """Weights of the projections."""
    providers: Annotated[list[ProviderEntry], _axis(str | dict[str, str]), Field(min_length=1)] = ["eager"]
    """Who runs the stages: names, or {default: name, STAGE: name, …} to mix."""
    baseline: BaselineSection = BaselineSection()
    """What speedups are over."""
    schedule: ScheduleSection = ScheduleSection()
    """Streams and CUDA graph."""
    timing: TimingSection = TimingSection()
    """How time is taken."""
    tp: Counts = [1]
    """Tensor-parallel sizes: query heads and output groups are divided, caches are not."""

    @field_validator("providers")
    @classmethod
    def _known_stages(cls, entries: list[ProviderEntry]) -> list[ProviderEntry]:
        for entry in entries:
            if isinstance(entry, dict):
                if "default" not in entry:
                    raise ValueError("a provider mapping needs the key 'default'")
                require_stages(key for key in entry if key != "default")
        return [_from_here(entry) for entry in entries]

    @field_validator("stages")
    @classmethod
    def _named_stages(cls, names: list[str] | None) -> list[str] | None:
        require_stages(names or ())
        return names

    @model_validator(mode="after")
    def _keys_fit_kind(self) -> "Scenario":
        if (self.kind == "stage") != bool(self.stages):
            raise ValueError("'stages' belongs to kind: stage, which needs it")
        if self.kind == "model" and self.layers is not None:
            raise ValueError("'layers' does not go with kind: model, which runs every layer of the model's list")
        if self.kind == "model" and self.weights.checkpoint is not None:
            raise ValueError("'weights.checkpoint' does not go with kind: model; it is read one layer at a time")
        if self.kind != "model" and self.copies != type(self).model_fields["copies"].default:
            raise ValueError("'copies' belongs to kind: model, whose layers take them in turn; leave it out")
        if self.kind == "memory" and self.baseline != BaselineSection():
            raise ValueError("'baseline' does not go with kind: memory, in which nothing is timed")
        if self.kind == "stage" and self.baseline.model is not None:
            raise ValueError("'baseline.model' does not go with kind: stage: the stages of two models differ")
        if len(self.model) > 1 and self.weights.checkpoint is not None:
            raise ValueError(f"a checkpoint is of one model, and model names {', '.join(self.model)}; name one")
        return self

    @model_validator(mode="after")
    def _graph_timer_has_graphs(self) -> "Scenario":
        if self.timing.timer == "graph" and not all(self.schedule.graph):
            raise ValueError(
                "timing.timer graph times CUDA graphs; set schedule.graph to true, or timing.timer to auto"
            )
        return self


def require_stages(names: Iterable[str]) -> None:
    """Refuse names of no stage.

    Raises:
        ValueError: the first of them.
    """
    for name in names:
        if name not in STAGE_NAMES:
            near = difflib.get_close_matches(name, STAGE_NAMES, n=1)
            hint = f"did you mean {near[0]!r}? Known" if near else "known"
            raise ValueError(f"unknown stage {name!r}; {hint}: {', '.join(STAGE_NAMES)}")
