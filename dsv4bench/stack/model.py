"""The attention layers of a whole model, over a stated small set of weights and caches that layers take in turn.

61 layers of V3.2 at a long context do not fit a card, and need not: what matters is that a layer finds neither its
weights nor its cache in L2, and a single layer's are larger than that. ``copies`` sets per layer kind are made; layer
number n of a kind uses set n modulo ``copies``. With as many copies as layers, every layer has its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.scenario.case import CachePrecision, WeightChoice
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.layer import RANDOM_BF16, Layer, prepare


@dataclass(frozen=True)
class Model:
    """Layers with weights and filled caches, and the order in which a step runs them.

    Attributes:
        layers: the distinct ones.
        order: for each layer of the model, which of them it is.
    """

    layers: tuple[Layer, ...]
    order: tuple[int, ...]


def turns(kinds: Sequence[LayerKind], copies: int) -> tuple[list[LayerKind], tuple[int, ...]]:
    """Kinds of the distinct layers, and for each layer of the model the one it uses.

    Args:
        kinds: of every layer of the model.
        copies: distinct layers of a kind, at most.
    """
    index: dict[tuple[LayerKind, int], int] = {}
    seen: dict[LayerKind, int] = {}
    order = []
    for kind in kinds:
        number = seen.get(kind, 0)
        seen[kind] = number + 1
        order.append(index.setdefault((kind, number % copies), len(index)))
    return [kind for kind, _ in index], tuple(order)


def prepare_model(
    shape: ModelShape,
    kinds: Sequence[LayerKind],
    copies: int,
    precision: CachePrecision,
    workloads: Sequence[Workload],
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    choice: WeightChoice = RANDOM_BF16,
) -> Model:
    """Make the distinct layers of a model.

    Args:
        shape: the model (of one tensor-parallel rank).
        kinds: of every layer.
        copies: distinct layers of a kind, at most.
        precision: of the caches.
        workloads: what will be drawn.
        device: where everything lives.
        seed: of weights and cache contents; every layer has its own.
        choice: precision of the weights.
    """
    distinct, order = turns(kinds, copies)
    layers = [
        prepare(shape, kind, precision, workloads, device=device, seed=seed + number, choice=choice)
        for number, kind in enumerate(distinct)
    ]
    return Model(tuple(layers), order)
