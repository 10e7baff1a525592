"""An A/B run: both sides of every case in interleaved rounds, more rounds where they don't decide, a second look.

The folder of an A/B run holds two run directories, ``a`` and ``b``, that share a run id: that is how the gate knows
that their rounds were interleaved. ``confirm`` holds two more, measured by fresh processes, for the cases that changed,
``more-1``, ``more-2`` and so on the further rounds of the cases that were open.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

from dsv4bench.analysis.examine import examine
from dsv4bench.analysis.gate import DOUBLINGS, Evidences, LimitsOf, settle, with_remarks
from dsv4bench.analysis.verdict import Subject, Verdict
from dsv4bench.bench.checkout import Checkout
from dsv4bench.bench.environment import describe_environment
from dsv4bench.bench.messages import Measured
from dsv4bench.bench.session import Listener, Request, complete_row, device_of, make_manifest, new_run_id, now
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.telemetry import all_tenants, open_sensor
from dsv4bench.bench.turns import Lane, MakeWorker, Pair, Turns
from dsv4bench.bench.worker import Worker
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.results.manifest import Manifest
from dsv4bench.results.row import Row, Status, Timing
from dsv4bench.results.run_directory import MANIFEST, Run, RunDirectory, read_run
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.schema import Scenario

SIDES = ("a", "b")
CONFIRM = "confirm"
WORKER_LOG = "worker.log"

Watching = Callable[[str, Sequence[Case], int], AbstractContextManager[Listener]]
"""Makes a progress display from what is done, the cases and the rounds of each."""


@dataclass(frozen=True)
class Party:
    """One side.

    Attributes:
        name: what the user called it, such as ``git:main``.
        scenario: resolved, with this side's providers.
        cases: the selected ones.
        checkout: revision its kernels come from; None for the working tree.
    """

    name: str
    scenario: Scenario
    cases: Sequence[Case]
    checkout: Checkout | None = None


@dataclass(frozen=True)
class Contest:
    """What is measured against what, and how.

    Attributes:
        parties: the two sides; a is the base.
        device: the ``--device`` text.
        argv: the command line, for the manifests.
        repro: the words that run it again, without ``--only`` and ``--no-check``.
        check: compare outputs with the reference around the timing.
        make_worker: starts the process of a side.
    """

    parties: tuple[Party, Party]
    device: str = "auto"
    argv: Sequence[str] = ()
    repro: Sequence[str] = ()
    check: bool = True
    make_worker: MakeWorker = Worker

    @property
    def rounds(self) -> int:
        """Rounds of the first pass."""
        return self.parties[0].scenario.timing.rounds

    def pairs(self) -> list[Pair]:
        """The cases of both sides that belong together.

        Raises:
            MeasurementError: no case belongs to another.
        """
        a, b = self.parties
        others = {case.pair_id: case for case in b.cases}
        same = {case.case_id: case for case in b.cases}
        found = [(case, same.get(case.case_id, others.get(case.pair_id))) for case in a.cases]
        pairs = [(case, other) for case, other in found if other is not None]
        if not pairs:
            raise MeasurementError(f"{a.name} and {b.name} have no case in common")
        return pairs


def measure_sides(
    contest: Contest,
    path: Path,
    watching: Watching,
    pairs: Sequence[Pair],
    *,
    first_round: int = 0,
    rounds: int = 0,
    folder: Path | None = None,
    swapped: bool = False,
) -> tuple[Run, Run]:
    """Measure both sides of some cases into run directories ``a`` and ``b``.

    Args:
        contest: who is measured.
        path: folder to make them in.
        watching: progress.
        pairs: which cases.
        first_round: number of the first round.
        rounds: how many; 0 for the scenario's own.
        folder: of the whole A/B run, where ``path`` is a part of it; nothing in it is an uncommitted change.
        swapped: let the side begin that otherwise gets its memory second.

    Raises:
        UserError: no such device, a timing that can't be honest there, or a folder that holds a run.
        MeasurementError: a worker does not come up.
    """
    rounds = rounds or contest.rounds
    if any((path / name / MANIFEST).exists() for name in SIDES):
        raise UserError(f"{path} already holds an A/B run; choose another --out")
    path.mkdir(parents=True, exist_ok=True)
    lanes = tuple(Lane(path / WORKER_LOG, party.checkout, contest.make_worker) for party in contest.parties)
    turns = Turns((lanes[0], lanes[1]), contest.device, swapped=swapped)
    try:
        books = _open_books(contest, path, turns, pairs, rounds, first_round, folder or path)
        with watching(f"{rounds} rounds", [case for pair in pairs for case in pair], rounds) as listen:
            for side, event in turns.run(pairs, (books[0].settings, books[1].settings)):
                books[side].note(event)
                listen(event)
        for book in books:
            book.directory.write_manifest(book.manifest.model_copy(update={"finished": now()}))
    finally:
        turns.close()
    return read_run(path / SIDES[0]), read_run(path / SIDES[1])


@dataclass(frozen=True)
class _Book:
    """What is written down about one side."""

    directory: RunDirectory
    manifest: Manifest
    settings: Settings
    cases: dict[str, Case]
    repro: Sequence[str]

    def note(self, event: object) -> None:
        """Journal a row."""
        if isinstance(event, Measured):
            case = self.cases[event.row.case_id]
            self.directory.append_samples(event.samples)
            self.directory.append_telemetry(event.telemetry)
            self.directory.append_row(complete_row(event, case, self.settings, self.manifest, self.repro))


def _open_books(
    contest: Contest, path: Path, turns: Turns, pairs: Sequence[Pair], rounds: int, first_round: int, output: Path
) -> tuple[_Book, _Book]:
    tenants = all_tenants()
    run_id = new_run_id(path)
    books = []
    for side, (party, found) in enumerate(zip(contest.parties, turns.probe(), strict=True)):
        device = device_of(found)
        timing = party.scenario.timing.model_copy(update={"rounds": rounds})
        settings = Settings(timing, device, contest.check, first_round)
        cases = [pair[side] for pair in pairs]
        for case in cases:
            settings.contract(case)  # refuses what can't be measured honestly before anything runs
        sensor = open_sensor(device.uuid)[0] if device.uuid else None
        environment = describe_environment(device, sensor, tenants, output)
        if party.checkout is not None:
            environment = environment.model_copy(update={"git_sha": party.checkout.sha, "git_dirty": None})
        request = Request(party.scenario, cases, contest.device, contest.argv, contest.repro, contest.check)
        manifest = make_manifest(request, run_id, found, environment).model_copy(update={"side": SIDES[side]})
        directory = RunDirectory.create(path / SIDES[side], manifest)
        books.append(_Book(directory, manifest, settings, {case.case_id: case for case in cases}, contest.repro))
    return books[0], books[1]


def decide(
    contest: Contest,
    path: Path,
    watching: Watching,
    limits_from: Callable[[Run], LimitsOf],
    *,
    confirm: bool = True,
    double: bool = True,
) -> tuple[tuple[Run, Run], list[Verdict]]:
    """Measure a contest and settle every case.

    Args:
        contest: who is measured.
        path: folder of the A/B run.
        watching: progress.
        limits_from: gives what a change must exceed, knowing the run.
        confirm: measure changes again in fresh processes.
        double: double the rounds of inconclusive cases.

    Returns:
        Both runs as stored, and the verdicts.
    """
    pairs = contest.pairs()
    runs = measure_sides(contest, path, watching, pairs)
    findings = examine([runs[0]], runs[1])
    passes = count(1)

    def some(subjects: Collection[Subject]) -> list[Pair]:
        wanted = {subject.case_id for subject in subjects}
        return [pair for pair in pairs if pair[1].case_id in wanted]

    def more(subjects: Collection[Subject]) -> Evidences:
        have = {subject: findings.evidence[subject].rounds for subject in subjects}
        for rounds in sorted(set(have.values())):
            chosen = some([subject for subject in subjects if have[subject] == rounds])
            number = next(passes)
            where, swapped = path / f"more-{number}", number % 2 == 1
            extra = measure_sides(
                contest, where, watching, chosen, first_round=rounds, rounds=rounds, folder=path, swapped=swapped
            )
            for side, run in zip(SIDES, extra, strict=True):
                _append_rounds(path / side, run)
        findings.evidence.update(examine([read_run(path / SIDES[0])], read_run(path / SIDES[1])).evidence)
        return findings.evidence  # of every stage of those cases, so that the files say what the verdicts say

    def again(subjects: Collection[Subject]) -> Evidences:
        fresh = contest.rounds * 2**DOUBLINGS  # a round that no pass has had, so that its inputs are new
        rounds = max(findings.evidence[subject].rounds for subject in subjects)  # to see as clearly as the first time
        where, chosen = path / CONFIRM, some(subjects)
        base, new = measure_sides(
            contest, where, watching, chosen, first_round=fresh, rounds=rounds, folder=path, swapped=True
        )
        return examine([base], new).evidence

    settled = settle(findings.evidence, limits_from(runs[1]), more if double else None, again if confirm else None)
    verdicts = [*findings.verdicts, *(with_remarks(verdict, findings.remarks) for verdict in settled)]
    return (read_run(path / SIDES[0]), read_run(path / SIDES[1])), verdicts


def _append_rounds(path: Path, extra: Run) -> None:
    """Add further rounds to the rows of a run directory; a row without them stays as it is."""
    later = {row.case_id: row for row in extra.rows if row.status is Status.OK}
    directory = RunDirectory(path)
    for row in read_run(path).rows:
        if row.case_id in later:
            directory.append_row(joined(row, later[row.case_id]))


def joined(first: Row, second: Row) -> Row:
    """A row with the rounds of two measurements of the same case."""
    stages = []
    for stage, more in zip(first.stages, second.stages, strict=True):
        both = stage.timing and more.timing
        stages.append(stage.model_copy(update={"timing": _joined(stage.timing, more.timing)}) if both else stage)
    return first.model_copy(update={"layer": _joined(first.layer, second.layer), "stages": stages})


def _joined(first: Timing | None, second: Timing | None) -> Timing | None:
    if first is None or second is None or not first.rounds:
        return first
    rounds = [*first.rounds, *second.rounds]
    middle = median(item.median for item in rounds)
    return first.model_copy(
        update={
            "median": middle,
            "min": min(first.min, second.min),
            "mad": median(abs(item.median - middle) for item in rounds),
            "rounds": rounds,
        }
    )
