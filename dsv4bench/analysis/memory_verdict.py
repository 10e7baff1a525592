"""Verdicts on bytes: deterministic figures are held to equality, measured ones to a per cent."""

from collections.abc import Iterator

from dsv4bench.analysis.pairing import Pair
from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.verdict import Outcome, Subject, Verdict

MEASURED_TOLERANCE = 0.01
"""Relative difference allowed for bytes that a device reported."""


def judge_memory(pair: Pair, *, same_machine: bool) -> Iterator[Verdict]:
    """Hold the memory figures of a case to those of its baseline.

    Args:
        pair: the case on both sides.
        same_machine: whether measured bytes may be compared as well; ideal and engine bytes always may.
    """
    if pair.base.memory is None:
        return
    before = pair.base.memory.model_dump()
    after = pair.new.memory.model_dump() if pair.new.memory else {}
    for figure, base in before.items():
        if base is None or (figure == "measured_bytes" and not same_machine):
            continue
        subject = Subject(pair.new.case_id, f"memory.{figure.removesuffix('_bytes')}", pair.new.label)
        new = after.get(figure)
        if new is None:
            detail = f"{figure}: the run has none"
            yield Verdict(subject, Outcome.INCONCLUSIVE, (Reason.VANISHED,), detail=detail, base=base)
            continue
        slack = MEASURED_TOLERANCE * base if figure == "measured_bytes" else 0
        if abs(new - base) <= slack:
            yield Verdict(subject, Outcome.PASS, (Reason.MEMORY_EQUAL,), base=base, new=new)
        else:
            reason = Reason.MEMORY_GREW if new > base else Reason.MEMORY_SHRANK
            detail = f"{base:,} → {new:,} bytes"
            yield Verdict(subject, Outcome.REGRESSED, (reason,), detail=detail, base=base, new=new)
