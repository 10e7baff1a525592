"""The executor: who is blamed when a worker dies or hangs, and that the others start over. No process is started."""

from dataclasses import dataclass, replace

import pytest

from dsv4bench.bench.device import Device
from dsv4bench.bench.execute import Executor, Watch, comparisons, group_cases
from dsv4bench.bench.messages import Done, Found, Measure, Measured, Probe, Trace, Traced, Working
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.turns import group_pairs
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.results.row import Status, Timing
from dsv4bench.scenario.case import CachePrecision, WeightChoice
from dsv4bench.scenario.expand import expand
from tests.dsv4bench.bench.small import small_scenario


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@dataclass
class Script:
    """Providers that kill or hang their worker, and everything that workers were asked."""

    clock: Clock
    kills: tuple = ()
    hangs: tuple = ()
    poisons: tuple = ()
    ends: Status = Status.SKIPPED
    untraceable: tuple = ()

    def __post_init__(self):
        self.workers, self.measured, self.traced = [], [], []

    def make(self, log):
        worker = FakeWorker(self)
        self.workers.append(worker)
        return worker


def row_of(settings, case, status):
    if status is Status.OK:
        return settings.measured(case, layer=Timing(median=1e-3, min=1e-3, mad=0.0))
    return settings.failed(case, status, "fake")


class FakeWorker:
    def __init__(self, script):
        self.script, self.inbox, self.dead = script, [], False

    def send(self, task):
        if isinstance(task, Probe):
            self.inbox.append(Found(Device("cpu")))
            return
        if isinstance(task, Trace):
            self.script.traced.append((self, [case.provider.label for case in task.cases]))
            for case in task.cases:
                dies = case.provider.label in self.script.untraceable
                self.inbox += [Working(case.case_id, "tracing"), EOFError() if dies else Traced(case.case_id, None)]
            self.inbox.append(Done({}, healthy=False))
            return
        assert isinstance(task, Measure)
        self.script.measured.append([case.provider.label for case in task.cases])
        poisoned = False
        for case in task.cases:
            self.inbox.append(Working(case.case_id, "round 1 of 2"))
            name = case.provider.label
            if name in self.script.kills:
                self.inbox.append(EOFError())
                return
            if name in self.script.hangs:
                self.inbox.append(TimeoutError())
                return
            if name in self.script.poisons:
                failed = task.settings.failed(case, Status.RUNTIME_ERROR, "illegal memory access")
                self.inbox += [Measured(failed), Done({}, healthy=False)]
                poisoned = True
                break
        if not poisoned:
            self.inbox += [Measured(row_of(task.settings, case, self.script.ends)) for case in task.cases]
            self.inbox.append(Done({"timing": 1.0}))

    def receive(self, timeout):
        message = self.inbox.pop(0)
        if isinstance(message, Exception):
            if isinstance(message, TimeoutError):
                self.script.clock.now += timeout
            raise message
        return message

    def dismiss(self):
        self.kill()

    def kill(self):
        self.dead = True

    def obituary(self):
        return "the worker process was killed by SIGKILL"


@pytest.fixture
def setup(tmp_path):
    def _setup(providers=("a",), **kinds):
        clock = Clock()
        script = Script(clock, **kinds)
        scenario = small_scenario(tmp_path, providers=list(providers), layers=["swa", "c4a"])
        cases = expand(scenario)
        executor = Executor(tmp_path / "log", clock, script.make)
        executor.probe("cpu", calibrate=False)
        events = list(executor.run(cases, Settings(scenario.timing, Device("cpu"))))
        rows = {event.row.label: event.row for event in events if isinstance(event, Measured)}
        assert len(rows) == len(cases) == sum(isinstance(event, Measured) for event in events)
        return script, {label.split("/")[-1] + "/" + row.case["layer"]: row for label, row in rows.items()}

    return _setup


def test_every_group_of_shared_tensors_has_a_worker_of_its_own(setup):
    script, rows = setup(("a", "b"))
    assert script.measured == [["a", "b"], ["a", "b"]]
    assert len(script.workers) == 2
    assert script.workers[0].dead
    assert {row.status for row in rows.values()} == {Status.SKIPPED}


def test_a_killed_worker_costs_the_case_it_was_on_and_the_others_start_over(setup):
    script, rows = setup(("a", "killer", "b"), kills=("killer",))
    assert script.measured[:2] == [["a", "killer", "b"], ["a", "b"]]
    assert rows["killer/swa"].status is Status.RUNTIME_ERROR
    assert rows["killer/swa"].reason == "the worker process was killed by SIGKILL, round 1 of 2"
    assert rows["a/swa"].status is rows["b/swa"].status is Status.SKIPPED


def test_a_hang_costs_its_time_and_its_case(setup):
    script, rows = setup(("a", "hanger"), hangs=("hanger",))
    assert rows["hanger/c4a"].status is Status.TIMEOUT
    assert rows["hanger/c4a"].reason == "no result within 600 s (timing.timeout), round 1 of 2"
    assert rows["a/c4a"].status is Status.SKIPPED
    assert script.workers[0].dead


def test_a_poisoned_device_ends_the_worker_and_spares_the_other_side(setup):
    script, rows = setup(("poison", "a"), poisons=("poison",))
    assert script.measured[:2] == [["poison", "a"], ["a"]]
    assert rows["poison/swa"].reason == "illegal memory access"
    assert rows["a/swa"].status is Status.SKIPPED


def traced(tmp_path, device="cuda", gaps=None, kind="layer", **kinds):
    """Whose gaps were traced by which worker, in a run of two steps over one set of caches; and the events."""
    script = Script(Clock(), **{"ends": Status.OK} | kinds)
    changes = {"kind": "stage", "stages": ["qkv_norm"]} if kind == "stage" else {}
    scenario = small_scenario(
        tmp_path, providers=["a", "b"], workload={"context": 256, "batch": [1, 2]}, timing={"gaps": gaps}, **changes
    )
    executor = Executor(tmp_path / "log", script.clock, script.make)
    executor.probe(device)
    settings = Settings(scenario.timing, Device(device, l2_bytes=1))
    return script, list(executor.run(expand(scenario), settings))


def test_gaps_are_traced_after_all_that_share_a_worker_were_timed_and_end_it(tmp_path):
    script, events = traced(tmp_path)
    assert [names for _, names in script.traced] == [["a", "b", "a", "b"]]
    assert len(script.measured) == 2
    worker, _ = script.traced[0]
    assert worker is script.workers[-1]
    assert worker.dead
    last_row = max(index for index, event in enumerate(events) if isinstance(event, Measured))
    assert all(index > last_row for index, event in enumerate(events) if isinstance(event, Traced))


@pytest.mark.parametrize(
    ("device", "gaps", "kind", "wanted"),
    [
        ("cuda", None, "layer", True),
        ("cuda", False, "layer", False),
        ("cuda", None, "stage", False),
        ("cuda", True, "stage", True),
        ("cpu", True, "layer", False),
    ],
)
def test_gaps_are_of_layers_on_a_gpu_unless_the_scenario_says_otherwise(tmp_path, device, gaps, kind, wanted):
    script, _ = traced(tmp_path, device, gaps, kind)
    assert bool(script.traced) == wanted


def test_cases_that_failed_are_not_traced_and_one_that_kills_the_worker_costs_no_row(tmp_path):
    script, _ = traced(tmp_path, ends=Status.SKIPPED)
    assert script.traced == []
    script, events = traced(tmp_path, untraceable=("b",))
    assert sum(isinstance(event, Measured) for event in events) == 4
    assert sum(isinstance(event, Traced) for event in events) == 1
    assert script.workers[-1].dead


def test_gaps_of_a_group_whose_worker_died_are_traced_in_another(tmp_path):
    script, _ = traced(tmp_path, kills=("b",))
    assert [names for _, names in script.traced] == [["a", "a"]]


def test_leaving_early_kills_the_worker(tmp_path):
    script = Script(Clock())
    scenario = small_scenario(tmp_path)
    executor = Executor(tmp_path / "log", script.clock, script.make)
    executor.probe("cpu", calibrate=False)
    events = executor.run(expand(scenario), Settings(scenario.timing, Device("cpu")))
    next(events)
    executor.close()
    assert script.workers[0].dead


def test_no_such_device_is_the_users_error(tmp_path):
    class Refusing(FakeWorker):
        def send(self, task):
            self.inbox.append(Found(None, error="--device cuda: torch sees no GPU here"))

    executor = Executor(tmp_path / "log", Clock(), lambda log: Refusing(Script(Clock())))
    with pytest.raises(UserError, match="torch sees no GPU here"):
        executor.probe("cuda", calibrate=False)


def test_a_worker_that_never_comes_up_is_a_failed_measurement(tmp_path):
    class Stillborn(FakeWorker):
        def send(self, task):
            self.inbox.append(EOFError())

    executor = Executor(tmp_path / "log", Clock(), lambda log: Stillborn(Script(Clock())))
    (tmp_path / "log").write_text("Traceback\nImportError: no torch\n")
    why = r"no worker process comes up: the worker process was killed by SIGKILL \(ImportError: no torch\)"
    with pytest.raises(MeasurementError, match=why):
        executor.probe("cpu", calibrate=False)


def test_time_is_counted_per_case_over_its_turns():
    clock = Clock()
    watch = Watch("a", 10.0, clock)
    clock.now = 4.0
    watch.see(Working("b", "round 1"))
    assert watch.left() == 10.0
    clock.now = 9.0
    watch.see(Working("a", "round 1"))
    assert watch.left() == 6.0
    clock.now = 20.0
    assert watch.left() == 0.0


def test_cases_are_grouped_by_what_they_share(tmp_path):
    scenario = small_scenario(
        tmp_path,
        layers=["swa", "c4a"],
        workload={"context": 256, "batch": [1, 2]},
        cache={"main": ["fp8", "bf16"]},
        providers=["a", "b"],
    )
    cases = expand(scenario)
    groups = group_cases(cases)
    assert len(groups) == 2 * 2
    assert all(len({(case.kind, case.cache) for case in group}) == 1 for group in groups)
    assert [len(sides) for group in groups for sides in comparisons(group)] == [2] * 8


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": WeightChoice("fp8")},
        {"cache": CachePrecision("bf16", "bf16")},
        {"layers": (LayerKind.SWA,)},
        {"copies": 2},
        {"tp": 2},
    ],
)
def test_a_run_and_an_ab_run_agree_on_what_can_share_tensors(tmp_path, changes):
    case = expand(small_scenario(tmp_path, layers=["swa"], workload={"context": 256}))[0]
    other = replace(case, **changes)
    assert len(group_cases([case, case, other])) == 2
    assert [len(pairs) for pairs in group_pairs([(case, case), (case, case), (other, other)])] == [2, 1]
