from multiprocessing import Pipe
from pathlib import Path

import pytest

from dsv4bench.bench.conformance import appraise_all, attempt_all, try_row
from dsv4bench.bench.messages import Appraise, Tried, Try
from dsv4bench.model.shape import LayerKind
from dsv4bench.verify.suite import Outcome, Status, row_numbered
from dsv4bench.verify.trial import Setting

SETTING = Setting(LayerKind.C4A, quick=True)


class Hanging:
    """A worker that answers the rows given at once and no others."""

    started = 0

    def __init__(self, log, answers=()):
        type(self).started += 1
        self.log, self.answers, self.killed = log, answers, False
        self.connection, self.far = Pipe()

    def send(self, task):
        if isinstance(task, Try) and task.row in self.answers:
            self.far.send(Tried(Outcome(row_numbered(task.row), task.setting, Status.PASS)))

    def receive(self, timeout):
        if not self.connection.poll(timeout):
            raise TimeoutError
        return self.connection.recv()

    def kill(self):
        self.killed = True


def tasks(*rows, jobs=1):
    return [Try("reference", row, SETTING, frozenset(), Path("f"), jobs) for row in rows]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_row_that_hangs_fails_after_its_time_and_the_next_one_has_a_worker_of_its_own(jobs):
    workers = []

    def make(log):
        workers.append(Hanging(log, answers=(7, 19)))
        return workers[-1]

    outcomes = {one.row.number: one for one in attempt_all(tasks(7, 12, 19, jobs=jobs), jobs, 0.05, make)}
    assert [outcomes[row].status for row in (7, 12, 19)] == [Status.PASS, Status.FAIL, Status.PASS]
    assert outcomes[12].reason == "layer: no result within 0.05 s (--timeout)"
    assert len(workers) == 2
    assert all(worker.killed for worker in workers)


def test_figures_that_hang_are_given_up():
    (found,) = appraise_all([Appraise("reference", SETTING, 1)], 1, 0.05, Hanging)
    assert (found.figures, found.error) == ({}, "no result within 0.05 s (--timeout)")


def test_a_row_that_cannot_even_be_asked_about_fails_in_a_sentence(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "class Mine:\n    name = 'mine'\n    def supports(self, need): return True\n    def topk(self): ...\n"
    )
    tried = try_row(Try(f"{path}:Mine", 12, SETTING, frozenset(), tmp_path, 1))
    assert tried.healthy
    assert tried.outcome.status is Status.FAIL
    assert "supports(need) of provider 'mine' returned True; return a Support of" in tried.outcome.reason


def test_a_failure_whose_inputs_cannot_be_saved_keeps_its_verdict(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "mine.py"
    path.write_text(
        "from dsv4bench.providers.base import SUPPORTED\n"
        "class Mine:\n    name = 'mine'\n    def supports(self, need): return SUPPORTED\n"
        "    def topk(self, *, logits, candidate_lens, k): raise ZeroDivisionError('by zero')\n"
    )
    outcome = try_row(Try(f"{path}:Mine", 12, SETTING, frozenset(), tmp_path / "file" / "below", 1)).outcome
    assert outcome.status is Status.FAIL
    assert outcome.reason.startswith("topk: ")
    assert "ZeroDivisionError: by zero" in outcome.reason
    assert "; its inputs can't be saved: " in outcome.reason
    assert outcome.saved is None
