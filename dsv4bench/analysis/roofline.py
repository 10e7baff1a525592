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


def impossible_rate(cost: Cost, seconds: float, datasheet: Peaks, *, cold: bool) -> str:
    """Why a time can't be right, in a sentence; empty if it can.

    FLOP/s above the datasheet are always impossible. Bytes per second are only if L2 was cold: warm inputs may come
    from L2 (``from_cache``).
    """
    rate, peak = cost.flops / seconds, datasheet.flops_of(cost)
    if rate > peak:
        return (
            f"{rate / 1e12:.0f} TFLOP/s exceed the {peak / 1e12:.0f} TFLOP/s of the {datasheet.source}: "
            "the time does not contain the work"
        )
    if cold and from_cache(cost, seconds, datasheet):
        return (
            f"{cost.bytes / seconds / 1e12:.2f} TB/s exceed the {datasheet.bandwidth / 1e12:.2f} TB/s of the "
            f"{datasheet.source}: L2 was not cold, or the time does not contain the work"
        )
    return ""


def from_cache(cost: Cost, seconds: float, datasheet: Peaks) -> bool:
    """Whether the bytes came faster than device memory delivers, so in part from L2."""
    return cost.bytes / seconds > datasheet.bandwidth
