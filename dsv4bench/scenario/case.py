"""Cases: one point of a scenario's grid, with ids that stay the same from run to run."""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.model.stage import STAGES
from dsv4bench.scenario.workload import Workload


@dataclass(frozen=True)
class CachePrecision:
    """Precisions of the caches and whether pages lie in one slab.

    Attributes:
        main: window and compressed cache: ``fp8``, ``bf16`` or ``fp32``.
        indexer: indexer cache: ``fp8``, ``fp4``, ``bf16`` or ``fp32``.
        slab: pages of all layers' caches interleaved as an engine allocates them (page stride ≠ page bytes).
    """

    main: str = "fp8"
    indexer: str = "fp8"
    slab: bool = True

    @property
    def label(self) -> str:
        """Short text, for example ``fp8+fp8``."""
        return f"{self.main}+{self.indexer}" + ("" if self.slab else "-packed")


@dataclass(frozen=True)
class Execution:
    """How the stages are launched: stream schedule, and as a CUDA graph or eagerly."""

    streams: str = "serial"
    graph: bool = False

    @property
    def label(self) -> str:
        """Short text, for example ``serial`` or ``multi+graph``."""
        return self.streams + ("+graph" if self.graph else "")


@dataclass(frozen=True)
class ProviderChoice:
    """Who runs the stages: a default and exceptions by stage name."""

    default: str
    overrides: tuple[tuple[str, str], ...] = ()

    def of(self, stage: str) -> str:
        """Provider of a stage."""
        return dict(self.overrides).get(stage, self.default)

    @property
    def names(self) -> tuple[str, ...]:
        """Every provider named, the default first."""
        return tuple(dict.fromkeys((self.default, *(name for _, name in self.overrides))))

    @property
    def label(self) -> str:
        """Short text, for example ``triton,sparse_attention=vllm``."""
        return ",".join((self.default, *(f"{stage}={name}" for stage, name in self.overrides)))


@dataclass(frozen=True)
class WeightChoice:
    """Precision of the large projections' weights, and where weights come from.

    Attributes:
        precision: ``bf16``, or ``fp8`` with a scale per block of 128 × 128.
        checkpoint: directory of safetensors; empty for random weights.
        layer: which layer of the checkpoint.
    """

    precision: str = "bf16"
    checkpoint: str = ""
    layer: int = 0

    def describe(self) -> dict[str, str]:
        """As plain data for rows and ids; nothing for random bf16 weights, so that ids outlive this choice."""
        described = {} if self.precision == "bf16" else {"weights": self.precision}
        if self.checkpoint:
            described["checkpoint"] = f"{PurePath(self.checkpoint).name}#{self.layer}"
        return described

    @property
    def labels(self) -> tuple[str, ...]:
        """Parts of a case's label, for example ``fp8-weights``; none for random bf16 ones."""
        return tuple(f"{value}-weights" if key == "weights" else value for key, value in self.describe().items())


@dataclass(frozen=True)
class Case:
    """One measurement: shape × layer × workload × cache × execution × provider.

    Attributes:
        scenario_kind: ``layer``, ``stage``, ``model`` or ``memory``.
        shape: dimensions of this rank (already divided by ``tp``).
        kind: layer kind; of a model the first one (``of_kind`` gives the others).
        workload: the step.
        cache: precisions.
        execution: streams and graph.
        provider: who runs the stages.
        stages: stage names to run on their own (``kind: stage``); empty for whole layers.
        tp: tensor-parallel size that ``shape`` is a rank of.
        weights: their precision and origin.
        layers: kind of each layer of a model (``kind: model``); empty for single layers.
        copies: of a model: distinct sets of weights and caches per layer kind, which its layers take in turn.
    """

    scenario_kind: str
    shape: ModelShape
    kind: LayerKind
    workload: Workload
    cache: CachePrecision
    execution: Execution
    provider: ProviderChoice
    stages: tuple[str, ...] = field(default=())
    tp: int = 1
    weights: WeightChoice = WeightChoice()
    layers: tuple[LayerKind, ...] = ()
    copies: int = 1

    def of_kind(self, kind: LayerKind) -> "Case":
        """A single layer of a model, at the same step."""
        return replace(self, scenario_kind="layer", kind=kind, layers=(), copies=1)

    @property
    def kinds(self) -> dict[LayerKind, int]:
        """Layers of each kind: those of a model, or the one layer."""
        return dict(Counter(self.layers or (self.kind,)))

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Stages that are timed, in execution order."""
        names = tuple(stage.name for stage in STAGES[self.kind])
        return tuple(name for name in names if name in self.stages) if self.stages else names

    def describe(self) -> dict[str, Any]:
        """The case as plain data: what its id is a digest of, and what a row stores."""
        return {
            "scenario_kind": self.scenario_kind,
            "model": self.shape.name,
            "shape": shape_digest(self.shape),
            "layer": "model" if self.layers else self.kind.value,
            **self._layers(),
            **self.workload.describe(),
            "main": self.cache.main,
            "indexer": self.cache.indexer,
            "slab": self.cache.slab,
            "streams": self.execution.streams,
            "graph": self.execution.graph,
            "provider": self.provider.label,
            "stages": list(self.stages),
            "tp": self.tp,
            **self.weights.describe(),
        }

    def _layers(self) -> dict[str, Any]:
        if not self.layers:
            return {}
        counts = "+".join(f"{count}{kind}" for kind, count in self.kinds.items())
        return {"layers": counts, "copies": self.copies}

    @property
    def case_id(self) -> str:
        """12 hex digits, stable across runs, machines and releases."""
        return _digest(self._identity())

    @property
    def pair_id(self) -> str:
        """The same without the provider: the sides of a comparison share it."""
        return self._identity_without("provider")

    @property
    def round_id(self) -> str:
        """The same without provider and streams: cases that share it take turns in the same rounds, on equal inputs."""
        return self._identity_without("provider", "streams")

    def _identity_without(self, *names: str) -> str:
        return _digest({key: value for key, value in self._identity().items() if key not in names})

    def _identity(self) -> dict[str, Any]:
        """What ids are digests of: the shape by its numbers, not by its name or path."""
        return {key: value for key, value in self.describe().items() if key != "model"}

    @property
    def label(self) -> str:
        """Readable and unique within a scenario; what ``--only`` matches."""
        model = self.shape.name + (f"-tp{self.tp}" if self.tp > 1 else "")
        what = "model" if self.layers else self.kind.value
        parts = [model, what, self.workload.label, self.cache.label, self.execution.label]
        parts += self.weights.labels
        if self.stages:
            parts.append("+".join(self.stages))
        return "/".join((*parts, self.provider.label))


def shape_digest(shape: ModelShape) -> str:
    """8 hex digits over the numbers of a shape that a single layer depends on: not its name, not its layer list."""
    numbers = {key: value for key, value in asdict(shape).items() if key not in ("name", "layers", "mtp_layers")}
    return _digest(numbers)[:8]


def _digest(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
