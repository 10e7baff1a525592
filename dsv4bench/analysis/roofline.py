"""Floors: the least time a card needs for a stage, which side bounds it, and rates that cannot be.

A floor is ``max(bytes / bandwidth, FLOPs / peak)``. It is a lower bound only as far as the peaks are: measured ones
say what this card reaches, datasheet ones what no such card exceeds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dsv4bench.model.cost import Cost
from dsv4bench.model.gpus import Gpu
from dsv4bench.results.manifest import Ceilings

Bound = Literal["memory", "compute"]


@dataclass(frozen=True)
class Peaks:
    """Ceilings of a card.

    Attributes:
        bandwidth: bytes per second of device memory, reads plus writes.
        bf16_flops: bf16 matrix FLOP per second.
        fp8_flops: fp8 matrix FLOP per second; 0 where there is no such unit (fp8 work then runs at the bf16 peak).
        source: where the figures are from: ``datasheet B200`` or ``measured``.
    """

    bandwidth: float
    bf16_flops: float
    fp8_flops: float
    source: str

    @classmethod
    def datasheet(cls, gpu: Gpu) -> "Peaks":
        """The vendor's figures."""
        return cls(gpu.memory_bandwidth, gpu.bf16_flops, gpu.fp8_flops, f"datasheet {gpu.name}")

    @classmethod
    def measured(cls, ceilings: Ceilings, gpu: Gpu | None = None) -> "Peaks | None":
        """What this card reached in a run; a figure that was not measured comes from its datasheet.

        Returns:
            None where a bf16 rate is known from neither.
        """
        bf16 = ceilings.bf16_flops_per_second or (gpu.bf16_flops if gpu else None)
        if bf16 is None:
            return None
        fp8 = ceilings.fp8_flops_per_second or (gpu.fp8_flops if gpu else 0.0)
        return cls(ceilings.copy_bytes_per_second, bf16, fp8, "measured")

    def flops_of(self, cost: Cost) -> float:
        """Peak of the matrix unit that a stage uses."""
        return self.fp8_flops or self.bf16_flops if cost.unit == "fp8" else self.bf16_flops


@dataclass(frozen=True)
class Floor:
    """Least time of a stage on a card.

    Attributes:
        seconds: the larger of memory and compute time.
        bound: which one that is.
    """

    seconds: float
    bound: Bound

    def percent(self, measured: float) -> float:
        """The floor in percent of a measured time in seconds: 100 is as fast as the peaks allow."""
        return 100 * self.seconds / measured


def floor(cost: Cost, peaks: Peaks) -> Floor:
    """The roofline floor of one stage."""
    memory, compute = cost.bytes / peaks.bandwidth, cost.flops / peaks.flops_of(cost)
    return Floor(compute, "compute") if compute > memory else Floor(memory, "memory")


def floors(costs: Mapping[str, Cost], peaks: Peaks) -> dict[str, Floor]:
    """Floors by stage."""
    return {stage: floor(cost, peaks) for stage, cost in costs.items()}


def serial_floor(parts: Iterable[Floor]) -> float:
    """Least time, in seconds, of stages that run one after another."""
    return sum(part.seconds for part in parts)


@dataclass(frozen=True)
class Least:
    """What stages need together, however they overlap and however well the L2 serves them.

    Attributes:
        compute: seconds that the matrix units need at their peaks.
        traffic: bytes between device memory and L2.
    """

    compute: float
    traffic: float

    def times(self, count: int) -> "Least":
        """The same work ``count`` times over."""
        return Least(count * self.compute, count * self.traffic)

    def __add__(self, other: "Least") -> "Least":
        return Least(self.compute + other.compute, self.traffic + other.traffic)

    def impossible(self, seconds: float, datasheet: Peaks) -> str:
        """Why the stages can't have taken so little time, in a sentence; empty if they can."""
        for what, least in (("FLOPs", self.compute), ("bytes from memory", self.traffic / datasheet.bandwidth)):
            if least > seconds:
                return (
                    f"the {what} alone take {least * 1e6:.3g} µs at the rates of the {datasheet.source} and "
                    f"{seconds * 1e6:.3g} µs were read: the time does not contain the work"
                )
        return ""


def least_traffic(costs: Iterable[Cost], weights: Iterable[Cost], l2_bytes: int, *, cold: bool, overlap: bool) -> int:
    """Bytes that stages, run as one, can't get from or leave in L2.

    Weights are read by one stage each. After a flush they all come from memory, without one all but an L2 full of them.
    Of its other bytes a stage may find an L2 full when it begins, left by the stages before it or by the call before,
    and leave as much unwritten when it ends. Where stages overlap, one may also find what another is just reading, so
    that only the weights count.

    Args:
        costs: of the stages.
        weights: the same without a request: what they read whatever the step is.
        l2_bytes: size of the L2.
        cold: whether the L2 was flushed before.
        overlap: whether stages run at the same time.
    """
    costs, weights = tuple(costs), tuple(weights)
    alone = sum(cost.bytes for cost in weights)
    first = alone if cold else max(alone - l2_bytes, 0)
    if overlap:
        return first
    rest = (cost.bytes - weight.bytes for cost, weight in zip(costs, weights, strict=True))
    return first + sum(max(part - 2 * l2_bytes, 0) for part in rest)


def from_cache(cost: Cost, seconds: float, datasheet: Peaks) -> bool:
    """Whether the bytes came faster than device memory delivers, so in part from L2."""
    return cost.bytes / seconds > datasheet.bandwidth
