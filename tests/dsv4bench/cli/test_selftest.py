from dsv4bench.analysis.selftest import machine_noise, with_stored
from dsv4bench.cli.selftest import judgement, noise_records
from tests.dsv4bench.stored_runs import around, row, run, shuffled


def cases(*spreads: float):
    a = [row(f"case {spread}", around(1e-4, spread=spread)) for spread in spreads]
    b = [row(f"case {spread}", shuffled(1e-4, spread=spread)) for spread in spreads]
    return machine_noise(run(a).manifest, a, b).cases


def test_a_quiet_machine_can_gate_everything():
    assert judgement(cases(0.001, 0.01)) == ["this machine can gate all 2 cases at 3 %"]


def test_a_noisy_machine_is_called_too_noisy_plainly():
    assert judgement(cases(0.001, 0.08, 0.15, 0.8)) == [
        "this machine is too noisy to gate 3 of 4 cases at 3 %",
        "1 of them differ from themselves by more than 5 %: `ab` takes more rounds",
        "1 by more than 5 % at any number of rounds: never gated here",
    ]


def test_the_noisiest_case_comes_first_and_one_beyond_gating_has_no_tolerance():
    records = noise_records(cases(0.001, 0.3))
    assert [record["case"] for record in records] == ["case 0.3", "case 0.001"]
    assert [record["tolerance"] for record in records] == [None, 0.01]


def test_a_self_test_of_some_cases_keeps_what_is_stored_of_the_others():
    def noise(*names: str, **machine):
        a, b = [row(name, around(1e-4)) for name in names], [row(name, shuffled(1e-4)) for name in names]
        return machine_noise(run(a, **machine).manifest, a, b)

    both, one, elsewhere = noise("x", "y"), noise("x"), noise("x", "y", gpu=None)
    assert [case.label for case in with_stored(one, both).cases] == ["x", "y"]
    assert with_stored(one, both).cases[0] == one.cases[0]
    assert with_stored(one, elsewhere) == one
