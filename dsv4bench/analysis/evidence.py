"""From stored rows to evidence: log ratios of rounds, or one run against the runs before it."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from dsv4bench.analysis.statistics import paired_t, prediction
from dsv4bench.analysis.verdict import Evidence
from dsv4bench.results.row import Round, Row, Timing


def timings(row: Row) -> Iterator[tuple[str, Timing]]:
    """The times of a row that are gated: the whole case; each stage where a scenario of ``kind: stage`` has several.

    There a change of one stage would drown in the sum of all.
    """
    stages = [(f"time.{stage.name}", stage.timing) for stage in row.stages if stage.timing is not None]
    if row.case.get("scenario_kind") == "stage" and len(stages) > 1:
        yield from stages
    elif row.layer is not None:
        yield "time", row.layer


def paired_evidence(base: Timing, new: Timing) -> Evidence | None:
    """Compare two sides measured in the same rounds.

    Returns:
        None if fewer than two rounds have both sides.
    """
    before = {item.index: item for item in base.rounds}
    rounds = [(before[item.index], item) for item in new.rounds if item.index in before]
    if len(rounds) < 2:
        return None
    ratios = [math.log(b.median / a.median) for a, b in rounds]
    cycles = [math.log(b_cycles / a_cycles) for a, b in rounds if (a_cycles := _cycles(a)) and (b_cycles := _cycles(b))]
    return Evidence(
        estimate=paired_t(ratios),
        base=median(a.median for a, _ in rounds),
        new=median(b.median for _, b in rounds),
        rounds=len(rounds),
        cycles=fmean(cycles) if cycles else None,
    )


def stored_evidence(
    history: Sequence[Timing], new: Timing, cards: Sequence[str | None] = (), card: str | None = None
) -> Evidence:
    """Compare one run with the runs stored before it, oldest first.

    The base is the geometric mean of their medians. Cards of one model differ by more than runs on one of them, and a
    second run on the same card differs in the same way. So a run on a card that no stored run comes from is held
    against the newest run of each card: there are as many observations as cards.

    Args:
        history: the stored times.
        new: the time of the run under test.
        cards: the card of each stored run; empty or None where it is unknown.
        card: the card of the run under test.
    """
    elsewhere = card is not None and bool(cards) and card not in cards and None not in cards
    observed = list(dict(zip(cards, history, strict=True)).values()) if elsewhere else history
    logs = [math.log(timing.median) for timing in observed]
    cycles = [clocked for timing in observed if (clocked := _mean_log_cycles(timing)) is not None]
    new_cycles = _mean_log_cycles(new)
    return Evidence(
        estimate=prediction(logs, math.log(new.median)),
        base=math.exp(fmean(logs)),
        new=new.median,
        rounds=len(new.rounds),
        cycles=new_cycles - fmean(cycles) if cycles and new_cycles is not None else None,
        stored=len(history),
        cards=len(observed) if elsewhere else None,
    )


def _cycles(item: Round) -> float | None:
    """Median of a round in SM clock cycles."""
    return item.median * item.sm_clock_hz if item.sm_clock_hz else None


def _mean_log_cycles(timing: Timing) -> float | None:
    logs = [math.log(cycles) for item in timing.rounds if (cycles := _cycles(item))]
    return fmean(logs) if logs else None
