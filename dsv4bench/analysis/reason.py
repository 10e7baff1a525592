"""Why a verdict is what it is: stable codes for scripts, and each in words."""

from enum import StrEnum

MINIMUM_HISTORY = 8
"""Stored runs below which a stored baseline proves nothing."""


MINIMUM_ROUNDS = 10
"""Rounds below which a comparison is called weak."""


class Reason(StrEnum):
    """Codes of a verdict; ``MEANING`` says each in words."""

    ABOVE_TOLERANCE = "above_tolerance"
    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"
    NOT_CONFIRMED = "not_confirmed"
    WITHIN_TOLERANCE = "within_tolerance"
    SMALL = "change_within_tolerance"
    BELOW_FLOOR = "below_floor"
    INCLUDES_ZERO = "interval_includes_zero"
    REACHES_TOLERANCE = "interval_reaches_tolerance"
    CLOCK_EXPLAINS = "clock_explains"
    NO_CLOCK = "no_clock"
    FEW_ROUNDS = "few_rounds"
    NOT_SIGNIFICANT = "not_significant_among_cases"
    TOO_NOISY = "too_noisy"
    INSUFFICIENT_HISTORY = "insufficient_history"
    OTHER_CARD = "other_card"
    CONTRACT_DIFFERS = "contract_differs"
    FINGERPRINT_DIFFERS = "fingerprint_differs"
    SHAPE_CHANGED = "shape_changed"
    VERSION_DIFFERS = "version_differs"
    RENAMED = "renamed"
    VANISHED = "vanished"
    NO_BASELINE = "no_baseline"
    MEASUREMENT_FAILED = "measurement_failed"
    MEMORY_EQUAL = "memory_equal"
    MEMORY_GREW = "memory_grew"
    MEMORY_SHRANK = "memory_shrank"


MEANING = {
    Reason.ABOVE_TOLERANCE: "the change exceeds the tolerance and the floor, and the interval excludes zero",
    Reason.CONFIRMED: "measured again in a fresh process, with the same sign and more than half the tolerance",
    Reason.UNCONFIRMED: "not measured again in a fresh process",
    Reason.NOT_CONFIRMED: "measured again in a fresh process, the change was not there",
    Reason.WITHIN_TOLERANCE: "the upper bound of the interval is below the tolerance",
    Reason.SMALL: "the change itself is no larger than the tolerance",
    Reason.BELOW_FLOOR: "the absolute change is below the floor",
    Reason.INCLUDES_ZERO: "the interval includes no change",
    Reason.REACHES_TOLERANCE: "the upper bound of the interval reaches the tolerance",
    Reason.CLOCK_EXPLAINS: "counted in clock cycles the change has the other sign: the clock moved, not the code",
    Reason.NO_CLOCK: "no SM clock was recorded, so the change could not be checked in cycles",
    Reason.FEW_ROUNDS: f"fewer than {MINIMUM_ROUNDS} rounds were measured, so the comparison is weak",
    Reason.NOT_SIGNIFICANT: "not significant once every gated case is counted (Holm)",
    Reason.TOO_NOISY: "identical code differs by more than can be gated here, and the change is no clearer than that",
    Reason.INSUFFICIENT_HISTORY: f"fewer than {MINIMUM_HISTORY} comparable stored runs",
    Reason.OTHER_CARD: "no stored run comes from this card, so the spread between cards counts, not that between runs",
    Reason.CONTRACT_DIFFERS: "the sides were measured under different contracts",
    Reason.FINGERPRINT_DIFFERS: "the sides were measured on different hardware",
    Reason.SHAPE_CHANGED: "the case has the same name and another definition",
    Reason.VERSION_DIFFERS: "software versions differ",
    Reason.RENAMED: "the same case under another name",
    Reason.VANISHED: "the baseline has this case, the run does not",
    Reason.NO_BASELINE: "the run has this case, the baseline does not",
    Reason.MEASUREMENT_FAILED: "the case gave no number",
    Reason.MEMORY_EQUAL: "the same bytes",
    Reason.MEMORY_GREW: "more bytes than the baseline",
    Reason.MEMORY_SHRANK: "fewer bytes than the baseline: store a new one if that is meant",
}
"""Each reason in words."""
