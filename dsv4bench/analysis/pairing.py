"""Which rows of two runs belong together, and whether they may be compared at all.

Rows are matched by case id; what is left over by the case without its provider, so that runs of two providers meet. A
case that kept its name and changed its definition is not a match: its numbers mean something else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv4bench.results.manifest import Manifest
from dsv4bench.results.row import Contract, Row

VERSIONS = ("release", "python", "torch", "triton", "vllm", "cuda", "driver")
"""Fields of the environment whose differences are reported, not refused."""


@dataclass(frozen=True)
class Pair:
    """One case on both sides."""

    base: Row
    new: Row

    @property
    def renamed(self) -> bool:
        """Whether the same case carries another name."""
        return self.base.case_id == self.new.case_id and self.base.label != self.new.label


@dataclass(frozen=True)
class Matching:
    """The rows of two runs, sorted out.

    Attributes:
        pairs: cases on both sides, in the new side's order.
        reshaped: same label, other definition.
        added: only on the new side.
        vanished: only on the base side.
    """

    pairs: tuple[Pair, ...]
    reshaped: tuple[Pair, ...]
    added: tuple[Row, ...]
    vanished: tuple[Row, ...]


def match(base: Sequence[Row], new: Sequence[Row]) -> Matching:
    """Match the rows of two runs: by case id, then by the case without its provider, then by name."""
    base_left, new_left = {row.case_id: row for row in base}, {row.case_id: row for row in new}
    found: dict[str, Pair] = {}
    reshaped: dict[str, Pair] = {}
    for attribute, into in (("case_id", found), ("pair_id", found), ("label", reshaped)):
        candidates = _unique(base_left.values(), attribute)
        for key, row in _unique(new_left.values(), attribute).items():
            if key in candidates:
                into[row.case_id] = Pair(candidates[key], row)
                del base_left[candidates[key].case_id], new_left[row.case_id]
    order = [row.case_id for row in new]
    return Matching(
        tuple(found[case_id] for case_id in order if case_id in found),
        tuple(reshaped[case_id] for case_id in order if case_id in reshaped),
        tuple(new_left.values()),
        tuple(base_left.values()),
    )


def contract_differences(base: Contract, new: Contract) -> str:
    """What sets two contracts apart, in words; empty if nothing does."""
    return _differences(base.model_dump(), new.model_dump())


def case_differences(base: Row, new: Row) -> str:
    """What sets the definitions of two cases apart, in words."""
    return _differences(base.case, new.case) or f"id: {base.case_id} → {new.case_id}"


def fingerprint(manifest: Manifest) -> dict[str, object]:
    """What two machines must share for their times to be compared.

    For a GPU its name, SM count, memory, power limit, ECC and MIG mode; for a run on the CPU the processor's name and
    how many there are.
    """
    environment = manifest.environment
    gpu = environment.gpu
    if gpu is None or manifest.device == "cpu":
        return {"device": "cpu", "processor": environment.cpu, "processors": environment.cpu_count}
    return {
        "GPU": gpu.name,
        "SMs": gpu.sm_count,
        "memory": gpu.memory_bytes,
        "power limit": gpu.power_limit_w,
        "ECC": gpu.ecc,
        "MIG": gpu.mig,
    }


def card_of(manifest: Manifest) -> str | None:
    """The very card a run was measured on, by its UUID; None on a CPU, whose machine has no name here."""
    gpu = manifest.environment.gpu
    return gpu.uuid if gpu is not None and manifest.device != "cpu" else None


def fingerprint_differences(base: Manifest, new: Manifest) -> str:
    """What sets two machines apart, in words; empty if they may be compared."""
    before, after = fingerprint(base), fingerprint(new)
    if before.keys() != after.keys():
        return f"device: {_device(before)} → {_device(after)}"
    return _differences(before, after)


def _device(fingerprint: dict[str, object]) -> object:
    return fingerprint.get("GPU") or f"CPU, {fingerprint['processor']}"


def version_differences(base: Manifest, new: Manifest) -> str:
    """Software whose version differs, in words."""
    before, after = base.environment.model_dump(), new.environment.model_dump()
    return _differences({name: before[name] for name in VERSIONS}, {name: after[name] for name in VERSIONS})


def _unique(rows: Iterable[Row], attribute: str) -> dict[str, Row]:
    """Rows by an attribute, those that share its value left out."""
    rows = list(rows)
    count = Counter(getattr(row, attribute) for row in rows)
    return {key: row for row in rows if count[key := getattr(row, attribute)] == 1}


def _differences(base: dict[str, object], new: dict[str, object]) -> str:
    keys = dict.fromkeys((*base, *new))
    return ", ".join(f"{key}: {base.get(key)} → {new.get(key)}" for key in keys if base.get(key) != new.get(key))
