"""An A/B run from its first message to its verdict, with workers that simulate the clock of a case."""

import random
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsv4bench.analysis.examine import examine
from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.verdict import PRESETS, Outcome
from dsv4bench.bench.ab import Contest, Party, decide, joined, measure_sides
from dsv4bench.bench.checkout import Checkout
from dsv4bench.bench.device import Device
from dsv4bench.bench.messages import Done, Found, Go, Measure, Measured, Probe, Ready, Settled, Took, Working
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.results.row import Round, StageRow, Status, Timing
from dsv4bench.results.run_directory import read_run
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario
from tests.dsv4bench.stored_runs import around, row, timing

BASE = 100e-6


class Stage:
    """Where simulated workers play: what each measures, and who did what in which order."""

    def __init__(self, effect: float = 0.0, sigma: float = 0.01, seed: int = 7) -> None:
        self.effect, self.sigma, self.random = effect, sigma, random.Random(seed)
        self.events: list[str] = []
        self.prepared: list[str] = []
        self.workers: list[SimulatedWorker] = []
        self.fate: dict[tuple[str, int], Any] = {}
        """(side, round) → an exception to raise, or a status to end with."""
        self.hot: list[tuple[str, int, int]] = []
        """(side, round, attempt) that throttle."""

    def make_worker(self, log: Path, checkout: Checkout | None) -> Any:
        worker = SimulatedWorker(self, "b" if checkout else "a")
        self.workers.append(worker)
        return worker


class SimulatedWorker:
    """Speaks a worker's protocol; a round takes simulated time."""

    def __init__(self, stage: Stage, side: str) -> None:
        self.stage, self.side, self.alive = stage, side, True
        self.outbox: deque[Any] = deque()
        self.rounds: list[Round] = []
        self.task: Measure | None = None
        self.attempt = self.repeated = 0
        self.last: Round | None = None

    def send(self, message: Any) -> None:
        if isinstance(message, Probe):
            self.outbox.append(Found(Device("cpu", timers={"wall": ""})))
        elif isinstance(message, Measure):
            assert message.in_turns
            self.stage.prepared.append(self.side)
            self.task, self.rounds, self.attempt, self.repeated = message, [], 0, 0
            self.outbox += [Working(message.cases[0].case_id, "preparing"), Ready(message.settings.first_round)]
        elif isinstance(message, Go):
            self._take_turn()
        elif isinstance(message, Settled):
            self._settle(message)

    def _take_turn(self) -> None:
        assert self.task is not None
        settings, [case] = self.task.settings, self.task.cases
        index = settings.first_round + len(self.rounds)
        self.stage.events.append(f"{self.side}{index}" + "'" * self.attempt)
        fate = self.stage.fate.get((self.side, index))
        if isinstance(fate, Exception):
            self.outbox.append(fate)
            return
        if fate is not None:
            self.outbox += [Measured(settings.failed(case, fate, "planted")), Done({})]
            return
        slow = 1 + self.stage.effect if self.side == "b" else 1.0
        value = BASE * slow * self.stage.random.lognormvariate(0.0, self.stage.sigma)
        self.last = Round(index=index, seed=index, iterations=1, median=value, min=value, mad=0.0)
        hot = (self.side, index, self.attempt) in self.stage.hot
        self.outbox.append(Took(("hw_slowdown",) if hot else ()))

    def _settle(self, settled: Settled) -> None:
        assert self.task is not None
        assert self.last is not None
        settings, [case] = self.task.settings, self.task.cases
        if settled.spoiled_by and self.repeated == settings.timing.rounds:
            failed = settings.failed(case, Status.INVALID_THERMAL, f"throttled ({', '.join(settled.spoiled_by)})")
            self.outbox += [Measured(failed), Done({})]
            return
        if settled.spoiled_by:
            self.attempt, self.repeated = self.attempt + 1, self.repeated + 1
        else:
            self.attempt = 0
            self.rounds.append(self.last)
        if len(self.rounds) < settings.timing.rounds:
            self.outbox.append(Ready(settings.first_round + len(self.rounds), self.attempt))
            return
        layer = timing([item.median for item in self.rounds], None).model_copy(update={"rounds": self.rounds})
        found = settings.measured(case, layer=layer)
        self.outbox += [Measured(found), Done({})]

    def receive(self, timeout: float) -> Any:
        message = self.outbox.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    def kill(self) -> None:
        self.alive = False

    def obituary(self) -> str:
        return "the worker process was killed by SIGSEGV"


@contextmanager
def silence(*_: object):
    yield lambda event: None


SCENARIO = load_scenario("quickstart", ["timing.rounds=10", "layers=[swa]", "model=v4-flash", "workload.batch=1"])
CASES = expand(SCENARIO)
ELSEWHERE = Checkout(Path("/repository"), Path("/worktree"), "c0ffee" * 6 + "c0ff")


def contest(stage: Stage, cases=CASES) -> Contest:
    parties = (Party("here", SCENARIO, cases), Party("git:new", SCENARIO, cases, ELSEWHERE))
    return Contest(parties, "cpu", ["ab"], ["dsv4bench", "ab"], make_worker=stage.make_worker)


def verdicts_of(stage: Stage, path: Path, cases=CASES[:1], **options: bool):
    _, verdicts = decide(
        contest(stage, cases), path, silence, lambda run: lambda subject, item: PRESETS["default"], **options
    )
    return [verdict for verdict in verdicts if verdict.subject.metric == "time"]


def test_a_slowdown_of_five_per_cent_is_found_and_confirmed_by_fresh_processes(tmp_path):
    stage = Stage(effect=0.05)
    [verdict] = verdicts_of(stage, tmp_path)
    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.reasons == (Reason.ABOVE_TOLERANCE, Reason.NO_CLOCK, Reason.CONFIRMED)
    assert verdict.effect == pytest.approx(0.05, abs=0.02)
    assert len(stage.workers) == 4
    assert read_run(tmp_path / "confirm/b").rows[0].layer.rounds[0].index >= 80, "inputs no pass has seen"


def test_identical_code_passes_and_nothing_is_measured_again(tmp_path):
    stage = Stage()
    [verdict] = verdicts_of(stage, tmp_path)
    assert (verdict.outcome, len(stage.workers)) == (Outcome.PASS, 2)
    assert not (tmp_path / "confirm").exists()


def test_of_many_simulated_contests_few_cry_wolf_and_most_catch_five_per_cent(tmp_path):
    """σ = 3 % and 10 rounds, as in the simulation of the rule, through every layer down to the files."""
    outcomes = {}
    for effect in (0.0, 0.05):
        found = [verdicts_of(Stage(effect, 0.03, seed), tmp_path / f"{effect}-{seed}")[0] for seed in range(12)]
        outcomes[effect] = sum(verdict.outcome is Outcome.REGRESSED for verdict in found)
    assert outcomes[0.0] <= 1
    assert outcomes[0.05] >= 10


def test_rounds_are_interleaved_in_an_order_that_changes(tmp_path):
    stage = Stage()
    measure_sides(contest(stage, CASES[:1]), tmp_path, silence, contest(stage, CASES[:1]).pairs())
    rounds = [tuple(sorted(stage.events[index : index + 2])) for index in range(0, 20, 2)]
    assert rounds == [(f"a{number}", f"b{number}") for number in range(10)]
    assert {event[0] for event in stage.events[::2]} == {"a", "b"}


def test_the_side_that_gets_its_memory_first_changes_by_case_and_pass(tmp_path):
    stage = Stage()
    who = contest(stage, CASES)
    for name, swapped in (("plain", False), ("swapped", True)):
        measure_sides(who, tmp_path / name, silence, who.pairs(), swapped=swapped)
    cases = len(who.pairs())
    firsts = stage.prepared[::2]
    assert sorted(stage.prepared) == ["a"] * 2 * cases + ["b"] * 2 * cases
    assert all(one != other for one, other in zip(firsts[:cases], firsts[cases:], strict=True))


def test_a_round_that_throttled_on_one_side_is_repeated_on_both(tmp_path):
    stage = Stage()
    stage.hot = [("a", 1, 0), ("b", 1, 1), ("b", 3, 0)]
    a, b = measure_sides(contest(stage, CASES[:1]), tmp_path, silence, contest(stage, CASES[:1]).pairs())
    turns = [tuple(sorted(stage.events[index : index + 2])) for index in range(0, len(stage.events), 2)]
    assert turns[:7] == [
        ("a0", "b0"),
        ("a1", "b1"),
        ("a1'", "b1'"),
        ("a1''", "b1''"),
        ("a2", "b2"),
        ("a3", "b3"),
        ("a3'", "b3'"),
    ]
    assert len(turns) == 10 + 3
    indices = [[item.index for item in run.rows[0].layer.rounds] for run in (a, b)]
    assert indices == [list(range(10))] * 2


def test_a_repeated_round_has_an_order_of_its_own(tmp_path):
    stage = Stage()
    stage.hot = [("a", 0, attempt) for attempt in range(10)]
    measure_sides(contest(stage, CASES[:1]), tmp_path, silence, contest(stage, CASES[:1]).pairs())
    assert {event[0] for event in stage.events[:20:2]} == {"a", "b"}


def test_a_side_that_never_cools_down_leaves_no_number_on_either(tmp_path):
    stage = Stage()
    stage.hot = [("b", 0, attempt) for attempt in range(11)]
    a, b = measure_sides(contest(stage, CASES[:1]), tmp_path, silence, contest(stage, CASES[:1]).pairs())
    assert [run.rows[0].status for run in (a, b)] == [Status.INVALID_THERMAL] * 2
    assert a.rows[0].reason == b.rows[0].reason == "throttled (hw_slowdown)"
    assert len(stage.events) == 2 * 11


def test_a_side_whose_partner_is_gone_still_repeats_its_own_throttled_rounds(tmp_path):
    stage = Stage()
    stage.fate["b", 1] = EOFError()
    stage.hot = [("a", 1, 0), ("a", 4, 0)]
    a, b = measure_sides(contest(stage, CASES[:1]), tmp_path, silence, contest(stage, CASES[:1]).pairs())
    assert (a.rows[0].status, b.rows[0].status) == (Status.OK, Status.RUNTIME_ERROR)
    assert [event for event in stage.events if event.startswith("a")].count("a4'") == 1


@pytest.mark.parametrize(("rounds", "says"), [(5, True), (10, False)])
def test_a_comparison_of_fewer_than_ten_rounds_says_that_it_is_weak(tmp_path, rounds, says):
    scenario = load_scenario(
        "quickstart", [f"timing.rounds={rounds}", "layers=[swa]", "model=v4-flash", "workload.batch=1"]
    )
    cases = expand(scenario)[:1]
    stage = Stage(sigma=0.001)
    parties = (Party("here", scenario, cases), Party("git:new", scenario, cases, ELSEWHERE))
    both = Contest(parties, "cpu", make_worker=stage.make_worker)
    _, verdicts = decide(both, tmp_path, silence, lambda run: lambda subject, item: PRESETS["default"])
    [verdict] = [verdict for verdict in verdicts if verdict.subject.metric == "time"]
    assert verdict.outcome is Outcome.PASS
    assert (Reason.FEW_ROUNDS in verdict.reasons) == says


def test_both_sides_share_a_run_id_and_b_carries_the_commit_of_its_revision(tmp_path):
    a, b = measure_sides(contest(Stage()), tmp_path, silence, contest(Stage()).pairs())
    assert a.manifest.run_id == b.manifest.run_id
    assert b.manifest.environment.git_sha == ELSEWHERE.sha
    assert not a.missing
    assert b.manifest.finished
    other, _ = measure_sides(contest(Stage()), tmp_path / "again", silence, contest(Stage()).pairs())
    assert other.manifest.run_id != a.manifest.run_id


def test_an_open_case_gets_twice_the_rounds_and_keeps_the_first_ones(tmp_path):
    stage = Stage(sigma=0.2)
    [verdict] = verdicts_of(stage, tmp_path)
    stored = read_run(tmp_path / "b").rows[0].layer.rounds
    assert len(stored) == verdict.evidence.estimate.count > 10
    assert [item.index for item in stored] == list(range(len(stored)))
    assert (tmp_path / "more-1/b/cases.jsonl").exists()


def test_a_change_found_after_more_rounds_is_confirmed_by_as_many(tmp_path):
    [verdict] = verdicts_of(Stage(effect=0.05, sigma=0.06, seed=0), tmp_path)
    first, second = (read_run(path).rows[0].layer.rounds for path in (tmp_path / "b", tmp_path / "confirm/b"))
    assert verdict.outcome is Outcome.REGRESSED
    assert len(first) == len(second) > 10
    assert not {item.index for item in first} & {item.index for item in second}


def test_without_doubling_an_open_case_stays_open(tmp_path):
    [verdict] = verdicts_of(Stage(sigma=0.2), tmp_path, double=False)
    assert (verdict.outcome, verdict.evidence.estimate.count) == (Outcome.INCONCLUSIVE, 10)


@pytest.mark.parametrize(
    ("fate", "status", "reason"),
    [
        (EOFError(), Status.RUNTIME_ERROR, "killed by SIGSEGV, preparing"),
        (TimeoutError(), Status.TIMEOUT, "timing.timeout"),
        (Status.INCORRECT, Status.INCORRECT, "planted"),
    ],
)
def test_a_side_that_breaks_fails_its_case_and_the_next_case_goes_on(tmp_path, fate, status, reason):
    stage = Stage()
    stage.fate["b", 3] = fate
    pairs = contest(stage).pairs()[:2]

    def heal(event: object) -> None:
        if isinstance(event, Measured) and event.row.status is not Status.OK:
            stage.fate.clear()

    @contextmanager
    def healing(*_: object):
        yield heal

    a, b = measure_sides(contest(stage), tmp_path, healing, pairs)
    assert [item.status for item in a.rows] == [Status.OK, Status.OK]
    assert [item.status for item in b.rows] == [status, Status.OK]
    assert reason in b.rows[0].reason
    assert not any(worker.alive for worker in stage.workers)


def test_a_folder_that_holds_a_run_is_not_written_to(tmp_path):
    measure_sides(contest(Stage()), tmp_path, silence, contest(Stage()).pairs())
    with pytest.raises(UserError, match="already holds an A/B run"):
        measure_sides(contest(Stage()), tmp_path, silence, contest(Stage()).pairs())


def test_sides_of_two_providers_meet_and_sides_without_a_common_case_are_refused():
    other = load_scenario("quickstart", ["layers=[swa]", "model=v4-flash", "workload.batch=1", "providers=reference"])
    pairs = Contest((Party("a", SCENARIO, CASES), Party("b", other, expand(other)))).pairs()
    assert [(a.provider.default, b.provider.default) for a, b in pairs] == [("eager", "reference")] * len(CASES)
    with pytest.raises(MeasurementError, match="no case in common"):
        Contest((Party("a", SCENARIO, CASES[:1]), Party("b", SCENARIO, CASES[1:]))).pairs()


def test_joining_rounds_recomputes_the_summary():
    def staged(values):
        stage = StageRow(name="topk", provider="p", timing=Timing(median=1.0, min=1.0, mad=0.0))
        return row("case", values, stages=[stage])

    both = joined(staged(around(1e-4)), staged(around(2e-4)))
    assert len(both.layer.rounds) == 20
    assert both.layer.median == pytest.approx(1.5e-4, rel=0.01)
    assert both.layer.min == pytest.approx(around(1e-4)[0])
    assert both.layer.mad == pytest.approx(0.5e-4, rel=0.01)
    assert both.stages[0].timing.median == 1.0, "a stage without rounds keeps its summary"


@pytest.mark.parametrize(("effect", "sigma"), [(0.0, 0.05), (0.05, 0.03), (-0.1, 0.02)])
def test_the_files_say_what_the_verdicts_say(tmp_path, effect, sigma):
    cases = CASES[:2]
    runs, verdicts = decide(
        contest(Stage(effect, sigma), cases), tmp_path, silence, lambda run: lambda subject, item: PRESETS["default"]
    )
    stored = examine([runs[0]], runs[1]).evidence
    measured = {verdict.subject: verdict.evidence for verdict in verdicts if verdict.evidence}
    assert measured == stored


def test_cases_that_share_no_tensors_get_fresh_processes(tmp_path):
    scenario = load_scenario(
        "quickstart", ["timing.rounds=2", "layers=[swa, c4a]", "model=v4-flash", "workload.batch=1"]
    )
    cases = expand(scenario)
    stage = Stage()
    parties = (Party("here", scenario, cases), Party("git:new", scenario, cases, ELSEWHERE))
    both = Contest(parties, "cpu", make_worker=stage.make_worker)
    a, _ = measure_sides(both, tmp_path, silence, both.pairs())
    assert [worker.side for worker in stage.workers] == ["a", "b", "a", "b"]
    assert len(a.rows) == len(cases)
