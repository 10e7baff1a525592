"""Conformance rows in worker processes: several at once, since compiling kernels takes most of their time on a GPU.

It also isolates them: a row that kills its process, or breaks the device's context, costs itself alone.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from dsv4bench.bench.device import use_device
from dsv4bench.bench.messages import Tried, Try
from dsv4bench.bench.worker import Worker
from dsv4bench.providers.base import Provider
from dsv4bench.providers.registry import load_provider
from dsv4bench.verify.attempt import attempt
from dsv4bench.verify.suite import Outcome, Status, row_numbered


def attempt_all(tasks: Sequence[Try], jobs: int, make_worker: Callable[[Path], Worker] = Worker) -> Generator[Outcome]:
    """Try rows in as many processes, yielding outcomes as they end; closing the generator ends the processes.

    What providers print goes nowhere.

    Args:
        tasks: what to try.
        jobs: processes at once.
        make_worker: starts a process.
    """
    waiting, idle = deque(tasks), list[Worker]()
    busy: dict[Any, tuple[Worker, Try]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker, task = idle.pop() if idle else make_worker(Path(os.devnull)), waiting.popleft()
                busy[worker.connection] = worker, task
                worker.send(task)
            for connection in wait(list(busy)):
                worker, task = busy[connection]
                tried = _answer(worker, task)
                del busy[connection]
                if tried.healthy:
                    idle.append(worker)
                else:
                    worker.kill()
                yield tried.outcome
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.kill()


def _answer(worker: Worker, task: Try) -> Tried:
    """What a worker that has something to say found; a failure if it is gone."""
    try:
        found = worker.receive(0.0)
    except EOFError:
        reason = f"layer: {worker.obituary()}"
        return Tried(Outcome(row_numbered(task.row), task.setting, Status.FAIL, reason=reason), healthy=False)
    assert isinstance(found, Tried)
    return found


def try_row(task: Try) -> Tried:
    """The worker's part; it is not healthy if the device's context broke."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // task.jobs))
    use_device(task.setting.device)
    outcome = attempt(_provider(task.provider), row_numbered(task.row), task.setting, task.allow, task.folder)
    return Tried(outcome, _works(task.setting.device))


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
