"""Conformance rows in worker processes, one or several at once: compiling kernels takes most of their time on a GPU.

Isolation is the point: a row that kills or hangs its process, or breaks the device's context, costs itself alone.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import torch

from dsv4bench.bench.device import use_device
from dsv4bench.bench.messages import Appraise, Appraised, Tried, Try
from dsv4bench.bench.worker import Worker
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.base import Provider, implemented_stages
from dsv4bench.providers.origin import place_of
from dsv4bench.providers.registry import load_provider
from dsv4bench.verify.accuracy import format_accuracy
from dsv4bench.verify.attempt import attempt
from dsv4bench.verify.sequences import small_shape
from dsv4bench.verify.suite import Outcome, Status, row_numbered
from dsv4bench.verify.trial import raised

MakeWorker = Callable[[Path | None], Worker]
"""Starts a process that prints into a file, or to standard error."""
Task = TypeVar("Task", Try, Appraise)
Answer = TypeVar("Answer", Tried, Appraised)


def attempt_all(
    tasks: Sequence[Try], jobs: int, timeout: float, make_worker: MakeWorker = Worker
) -> Generator[Outcome]:
    """Try rows in as many processes, yielding outcomes as they end; closing the generator ends the processes.

    What a provider prints goes to standard error, or nowhere where several would print at once.

    Args:
        tasks: what to try.
        jobs: processes at once.
        timeout: seconds after which a row's process is killed and the row fails.
        make_worker: starts a process.
    """
    with closing(_answers(tasks, jobs, timeout, make_worker, _lost_row)) as answers:
        for tried in answers:
            yield tried.outcome


def appraise_all(
    tasks: Sequence[Appraise], jobs: int, timeout: float, make_worker: MakeWorker = Worker
) -> list[Appraised]:
    """What cache precisions cost, found in as many processes; arguments as of ``attempt_all``."""
    with closing(_answers(tasks, jobs, timeout, make_worker, _lost_figures)) as answers:
        return list(answers)


def _answers(
    tasks: Sequence[Task], jobs: int, timeout: float, make_worker: MakeWorker, lost: Callable[[Task, str], Answer]
) -> Generator[Answer]:
    """Every task's answer, as they come; ``lost`` makes that of a process which ends or hangs."""
    start = partial(make_worker, None if jobs == 1 else Path(os.devnull))
    waiting = deque(tasks)
    idle: list[Worker] = []
    busy: dict[Any, tuple[Worker, Task, float]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker, task = idle.pop() if idle else start(), waiting.popleft()
                busy[worker.connection] = worker, task, time.monotonic() + timeout
                worker.send(task)
            first = min(deadline for _, _, deadline in busy.values())
            wait(list(busy), max(first - time.monotonic(), 0.0))
            for worker, task, deadline in list(busy.values()):
                try:
                    answer = worker.receive(0.0)
                except TimeoutError:
                    if time.monotonic() < deadline:
                        continue
                    answer = lost(task, f"no result within {timeout:g} s (--timeout)")
                except EOFError:
                    answer = lost(task, worker.obituary())
                del busy[worker.connection]
                if answer.healthy:
                    idle.append(worker)
                else:
                    worker.kill()
                yield answer
    finally:
        for worker in (*idle, *(worker for worker, _, _ in busy.values())):
            worker.kill()


def _lost_row(task: Try, why: str) -> Tried:
    return Tried(Outcome(row_numbered(task.row), task.setting, Status.FAIL, reason=f"layer: {why}"), healthy=False)


def _lost_figures(task: Appraise, why: str) -> Appraised:
    return Appraised(task.setting, error=why, healthy=False)


def try_row(task: Try) -> Tried:
    """The worker's part of a row; it is not healthy if the device's context broke."""
    _settle(task)
    row, setting = row_numbered(task.row), task.setting
    try:
        outcome = attempt(_provider(task.provider), row, setting, task.allow, task.folder)
    except (Exception, SystemExit) as error:  # what a provider is asked before any stage may raise as well
        outcome = Outcome(row, setting, Status.FAIL, reason=raised("layer", error).sentence)
    return Tried(outcome, _works(setting.device))


def appraise(task: Appraise) -> Appraised:
    """The worker's part of the figures of one cache precision, by the stages that the provider has itself."""
    _settle(task)
    setting, provider = task.setting, _provider(task.provider)
    owned = {stage.name for stage in STAGES[setting.kind]} & set(implemented_stages(provider))
    try:
        found = format_accuracy(
            dict.fromkeys(owned, provider),
            small_shape(setting.kind, setting.device),
            setting.kind,
            setting.precision,
            context=4096 if setting.quick else 32_768,
            device=setting.device,
            seed=setting.seed,
        )
    except (Exception, SystemExit) as error:  # a provider may raise anything
        said = f"{type(error).__name__}: {error}{place_of(error)}"
        return Appraised(setting, error=said, healthy=_works(setting.device))
    figures = {stage: numbers for stage, numbers in found.items() if stage in owned}
    return Appraised(setting, figures, healthy=_works(setting.device))


def _settle(task: Try | Appraise) -> None:
    """Take the device, and no more threads than are of use."""
    setting = task.setting
    if setting.quick and setting.device == "cpu":
        torch.set_num_threads(1)  # on shapes as small as these more threads wait for each other
    elif task.jobs > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // task.jobs))
    use_device(setting.device)


@lru_cache
def _provider(name: str) -> Provider:
    """Loaded once a process, and with it the kernels that it has compiled."""
    return load_provider(name)


def _works(device: str) -> bool:
    if not device.startswith("cuda"):
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True
