import math

import pytest

from dsv4bench.analysis.examine import Findings, examine
from dsv4bench.analysis.gate import settle
from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.statistics import prediction
from dsv4bench.analysis.verdict import PRESETS, Outcome
from dsv4bench.results.manifest import PlannedCase
from dsv4bench.results.row import StageRow, Status
from tests.dsv4bench.stored_runs import CONTRACT, H200, around, base_run, row, run, shuffled, timing

BASE = row("case", around(1e-4))
SAME = row("case", shuffled(1e-4))


def only_verdict(findings: Findings) -> tuple[Outcome, Reason, str]:
    [verdict] = findings.verdicts
    assert not findings.evidence
    return verdict.outcome, verdict.reasons[0], verdict.detail


def test_two_sides_of_one_run_are_compared_round_by_round():
    [evidence] = examine([base_run([BASE])], run([SAME])).evidence.values()
    assert not evidence.stored
    assert (evidence.rounds, evidence.estimate.count) == (10, 10)


def test_a_run_that_was_measured_apart_is_a_history_of_one():
    [evidence] = examine([base_run([BASE], "before")], run([SAME], "after")).evidence.values()
    assert evidence.stored
    assert evidence.estimate.count == 1


def test_a_run_beside_its_own_copy_is_no_pair_of_sides():
    [evidence] = examine([run([SAME])], run([SAME])).evidence.values()
    assert evidence.stored


def test_rounds_are_paired_by_their_index():
    late = timing(around(1e-4)).rounds[5:]
    new = SAME.model_copy(update={"layer": SAME.layer.model_copy(update={"rounds": late})})
    [evidence] = examine([base_run([BASE])], run([new])).evidence.values()
    assert evidence.rounds == 5
    assert evidence.estimate.log_effect == pytest.approx(0)


def test_unlike_contracts_are_refused_and_the_difference_is_named():
    cold = row("case", shuffled(1e-4), contract=CONTRACT.model_copy(update={"l2": "cold"}))
    found = only_verdict(examine([base_run([BASE])], run([cold])))
    assert found == (Outcome.INCOMPARABLE, Reason.CONTRACT_DIFFERS, "l2: warm → cold")


def test_another_gpu_is_refused():
    other = H200.model_copy(update={"name": "NVIDIA H100 80GB HBM3"})
    found = only_verdict(examine([base_run([BASE], gpu=other)], run([SAME])))
    assert found == (Outcome.INCOMPARABLE, Reason.FINGERPRINT_DIFFERS, "GPU: NVIDIA H100 80GB HBM3 → NVIDIA H200")


def test_a_changed_shape_is_refused_and_the_difference_is_named():
    before = row("case", around(1e-4), case_id="x", pair_id="x", case={"layer": "c4a", "batch": 1})
    after = row("case", around(1e-4), case_id="y", pair_id="y", case={"layer": "c4a", "batch": 2})
    [refusal] = [item for item in examine([base_run([before])], run([after])).verdicts if item.subject.case_id == "y"]
    assert (refusal.outcome, refusal.reasons, refusal.detail) == (
        Outcome.INCOMPARABLE,
        (Reason.SHAPE_CHANGED,),
        "batch: 1 → 2",
    )


def test_stored_runs_of_other_hardware_and_contract_are_left_out_of_the_history():
    cold = row("case", around(2e-4), contract=CONTRACT.model_copy(update={"l2": "cold"}))
    capped = H200.model_copy(update={"power_limit_w": 400.0})
    history = [run([BASE], f"run{day}", day) for day in range(1, 9)]
    history += [run([cold], "cold", 9), run([BASE], "capped", 10, gpu=capped)]
    [evidence] = examine(history, run([SAME], "new", 11)).evidence.values()
    assert evidence.estimate.count == 8
    assert evidence.estimate.effect == pytest.approx(0)


def on_cards(*medians: tuple[str, float]):
    """Stored runs, each on a card, oldest first."""
    return [
        run([row("case", [median] * 3)], f"run{day}", day, gpu=H200.model_copy(update={"uuid": card}))
        for day, (card, median) in enumerate(medians, 1)
    ]


FOUR_CARDS = [
    (f"GPU-{index % 4}", 1e-4 * (1 + 0.01 * (index % 4 - 1.5) + 0.001 * (index // 4 - 0.5))) for index in range(8)
]


def test_a_run_on_a_card_of_the_history_is_held_against_its_runs():
    [new] = on_cards(("GPU-1", 1e-4))
    [evidence] = examine(on_cards(*FOUR_CARDS), new).evidence.values()
    assert (evidence.stored, evidence.cards, evidence.estimate.count) == (8, None, 8)


def test_a_run_on_a_card_without_history_is_held_against_the_newest_run_of_each_card():
    [new] = on_cards(("GPU-9", 1e-4))
    [evidence] = examine(on_cards(*FOUR_CARDS), new).evidence.values()
    assert (evidence.stored, evidence.cards, evidence.estimate.count) == (8, 4, 4)
    newest = [math.log(median) for _, median in FOUR_CARDS[4:]]
    assert evidence.estimate.half_width == pytest.approx(prediction(newest, math.log(1e-4)).half_width)


def test_clock_cycles_are_compared_with_the_runs_that_the_times_are_compared_with():
    """At one clock cycles say what times say, whatever older runs of the cards took."""
    newest = [("GPU-0", 15.9e-6), ("GPU-1", 16.0e-6), ("GPU-2", 16.1e-6), ("GPU-3", 16.0e-6)]
    older = [(card, 20e-6) for card, _ in newest for _ in range(3)]
    [new] = on_cards(("GPU-9", 18e-6))
    [evidence] = examine(on_cards(*older, *newest), new).evidence.values()
    assert evidence.cycles == pytest.approx(evidence.estimate.log_effect)
    assert evidence.cycles > 0.1


def test_eight_runs_of_one_card_say_nothing_of_another_card():
    history, [new] = on_cards(*[("GPU-0", 1e-4 + day * 1e-8) for day in range(8)]), on_cards(("GPU-9", 1.04e-4))
    [verdict] = settle(examine(history, new).evidence, lambda *_: PRESETS["default"])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert Reason.OTHER_CARD in verdict.reasons


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.RUNTIME_ERROR, Status.TIMEOUT, Status.INVALID_RATE])
def test_a_case_that_broke_is_a_failed_measurement(status):
    broken = row("case", status=status, reason="illegal memory access")
    found = only_verdict(examine([base_run([BASE])], run([broken])))
    assert found == (Outcome.FAILED, Reason.MEASUREMENT_FAILED, f"{status.value}: illegal memory access")


def test_a_base_that_broke_is_a_failed_measurement_and_not_a_missing_baseline():
    broken = row("case", status=Status.RUNTIME_ERROR, reason="illegal memory access")
    found = only_verdict(examine([base_run([broken])], run([SAME])))
    assert found == (Outcome.FAILED, Reason.MEASUREMENT_FAILED, "base side runtime_error: illegal memory access")


def test_a_case_that_no_longer_runs_is_a_failed_measurement():
    gone = row("case", status=Status.UNSUPPORTED, reason="needs sm_90")
    assert only_verdict(examine([base_run([BASE])], run([gone])))[0] is Outcome.FAILED


def test_a_case_that_never_ran_is_only_noted():
    never = row("case", status=Status.UNSUPPORTED, reason="needs sm_90")
    findings = examine([base_run([never])], run([never]))
    assert (findings.verdicts, findings.evidence) == ([], {})
    assert findings.notes == ["case is not gated: unsupported, needs sm_90"]


def test_a_case_that_a_killed_run_lost_is_a_failed_measurement():
    lost = [PlannedCase(case_id="id-case", label="case"), PlannedCase(case_id="id-lost", label="lost")]
    findings = examine([base_run([BASE])], run([SAME], planned=lost))
    [verdict] = findings.verdicts
    assert (verdict.outcome, verdict.subject.label) == (Outcome.FAILED, "lost")


def test_new_and_vanished_cases_are_inconclusive():
    findings = examine([base_run([BASE])], run([row("other", around(1e-4))]))
    assert {(item.subject.label, item.reasons[0]) for item in findings.verdicts} == {
        ("case", Reason.VANISHED),
        ("other", Reason.NO_BASELINE),
    }
    assert {item.outcome for item in findings.verdicts} == {Outcome.INCONCLUSIVE}
    assert {item.new for item in findings.verdicts} == {None, row("other", around(1e-4)).layer.median}


def test_a_renamed_case_is_compared_and_reported():
    renamed = row("case, renamed", shuffled(1e-4), case_id="id-case")
    findings = examine([base_run([BASE])], run([renamed]))
    assert findings.notes == ["case is now called case, renamed"]
    assert findings.remarks == {"id-case": (Reason.RENAMED,)}
    assert len(findings.evidence) == 1


def test_other_versions_are_remarked_and_not_refused():
    findings = examine([base_run([BASE], torch="2.11.0")], run([SAME]))
    assert findings.remarks == {"id-case": (Reason.VERSION_DIFFERS,)}
    assert len(findings.evidence) == 1


@pytest.mark.parametrize("time", [0.0, -1e-6])
def test_a_timer_that_read_zero_or_less_is_a_failed_measurement_of_its_side(time):
    wrong = row("case", [time] * 10)
    for base, new, side in ((BASE, wrong, "new"), (wrong, SAME, "base")):
        outcome, _, detail = only_verdict(examine([base_run([base])], run([new])))
        assert (outcome, detail) == (Outcome.FAILED, f"{side} side: the timer read zero or less")


def staged(kind: str, *stages: str):
    timed = [StageRow(name=name, provider="p", timing=timing(around(1e-5))) for name in stages]
    return row("case", around(1e-4), case={"scenario_kind": kind}, stages=timed)


@pytest.mark.parametrize(
    ("case", "metrics"),
    [
        (staged("stage", "topk", "index_map"), ["time.topk", "time.index_map"]),
        (staged("stage", "topk"), ["time"]),
        (staged("layer", "topk", "index_map"), ["time"]),
    ],
)
def test_several_stages_of_their_own_are_gated_one_by_one_and_layers_as_a_whole(case, metrics):
    evidence = examine([base_run([case])], run([case])).evidence
    assert [subject.metric for subject in evidence] == metrics


@pytest.mark.parametrize(
    ("before", "after", "outcome", "reason"),
    [
        (5000, 5000, Outcome.PASS, Reason.MEMORY_EQUAL),
        (5000, 5001, Outcome.REGRESSED, Reason.MEMORY_GREW),
        (5000, 4999, Outcome.REGRESSED, Reason.MEMORY_SHRANK),
        (5000, None, Outcome.INCONCLUSIVE, Reason.VANISHED),
    ],
)
def test_engine_bytes_are_held_to_equality(before, after, outcome, reason):
    base = row("case", around(1e-4), engine_bytes=before)
    new = row("case", around(1e-4), engine_bytes=after if after else None)
    verdicts = {item.subject.metric: item for item in examine([base_run([base])], run([new])).verdicts}
    assert (verdicts["memory.engine"].outcome, verdicts["memory.engine"].reasons[0]) == (outcome, reason)


@pytest.mark.parametrize(("measured", "outcome"), [(10_090, Outcome.PASS), (10_110, Outcome.REGRESSED)])
def test_measured_bytes_may_differ_by_a_per_cent(measured, outcome):
    def figures(size):
        return {"ideal_bytes": 1, "engine_bytes": 2, "measured_bytes": size}

    base, new = row("case", around(1e-4), memory=figures(10_000)), row("case", around(1e-4), memory=figures(measured))
    verdicts = {item.subject.metric: item for item in examine([base_run([base])], run([new])).verdicts}
    assert verdicts["memory.measured"].outcome is outcome


def test_memory_is_gated_by_one_stored_run_and_on_any_card_but_measured_bytes_only_on_the_same():
    other = H200.model_copy(update={"name": "NVIDIA B200"})
    memory = {"ideal_bytes": 1, "engine_bytes": 2, "measured_bytes": 3}
    base, new = row("case", around(1e-4), memory=memory), row("case", around(1e-4), memory=memory)
    verdicts = examine([base_run([base], "before", gpu=other)], run([new], "after")).verdicts
    assert [item.subject.metric for item in verdicts if item.outcome is Outcome.PASS] == [
        "memory.ideal",
        "memory.engine",
    ]
