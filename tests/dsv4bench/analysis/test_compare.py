import pytest

from dsv4bench.analysis.compare import compare, refused
from dsv4bench.analysis.verdict import PRESETS, Outcome
from dsv4bench.errors import IncomparableError
from tests.dsv4bench.stored_runs import CONTRACT, around, base_run, row, run, shuffled

LIMITS = PRESETS["default"]


def test_the_worst_case_comes_first():
    first = base_run([row(name, around(1e-4)) for name in "abc"])
    new = run([row("a", shuffled(1e-4)), row("b", shuffled(1.2e-4)), row("c", shuffled(0.8e-4))])
    comparisons, _ = compare(first, [new], LIMITS)
    assert [item.name for item in comparisons] == ["b", "c", "a"]
    assert [item.worst.outcome for item in comparisons] == [Outcome.REGRESSED, Outcome.FASTER, Outcome.PASS]


def test_each_further_run_is_a_column_and_a_case_it_lacks_is_empty():
    first = base_run([row("a", around(1e-4)), row("b", around(1e-4))])
    others = [run([row("a", shuffled(1e-4)), row("b", shuffled(1e-4))]), run([row("a", shuffled(2e-4))], planned=[])]
    comparisons, _ = compare(first, others, LIMITS)
    cells = {item.name: [verdict and verdict.outcome for verdict in item.verdicts] for item in comparisons}
    assert cells["a"] == [Outcome.PASS, Outcome.REGRESSED]
    assert cells["b"] == [Outcome.PASS, Outcome.INCONCLUSIVE]


def test_runs_measured_apart_show_their_change_and_decide_nothing():
    [item], _ = compare(base_run([row("a", around(1e-4))], "x"), [run([row("a", around(2e-4))], "y")], LIMITS)
    assert item.worst.outcome is Outcome.INCONCLUSIVE
    assert item.worst.effect == pytest.approx(1.0)


def test_unlike_contracts_make_it_an_error():
    cold = row("a", around(1e-4), contract=CONTRACT.model_copy(update={"l2": "cold"}))
    comparisons, _ = compare(base_run([row("a", around(1e-4))]), [run([cold])], LIMITS)
    assert refused(comparisons)
    assert comparisons[0].worst.effect is None


def test_runs_without_a_common_case_are_refused():
    with pytest.raises(IncomparableError, match="no case in common"):
        compare(base_run([row("a", around(1e-4))]), [run([row("b", around(1e-4))])], LIMITS)
