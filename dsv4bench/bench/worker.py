"""Worker processes: each in a process group of its own, killed as a whole, silent on the terminal.

Isolation is the point: an illegal memory access, a hang or a ``kill -9`` ends one process and costs one case. Workers
are forked from a clean server process that has done nothing but import torch, since that import takes seconds and a run
needs a worker for every group of cases.
"""

import contextlib
import faulthandler
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from dsv4bench.bench.checkout import Checkout, adopt
from dsv4bench.bench.messages import Appraise, Found, Go, Measure, Probe, Settled, Trace, Try
from dsv4bench.errors import MeasurementError

START_TIMEOUT = 300.0
"""Seconds within which a worker has to answer its probe; importing torch on a busy machine takes a while."""


PRELOADED = ("torch", "triton", "numpy", "pydantic")
"""What the server has imported when a worker is forked: libraries that touch no device and start no thread on import.
None of the project's own modules is among them, since a worker may take those from another revision."""


LAST_WORDS = 30.0
"""Seconds that a profiled worker has for writing down what was recorded."""
INJECTIONS = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")
"""Set by a profiler for the processes below it. Nsight Systems follows a child only once it has called exec."""


def start_method(environment: Mapping[str, str]) -> str:
    """How workers start: forked from the server or, under a profiler, each as a program of its own."""
    return "spawn" if any(name in environment for name in INJECTIONS) else "forkserver"


class Worker:
    """The parent's end of a worker process; what it prints goes to ``log``, or to standard error where that is None."""

    def __init__(self, log: Path | None, checkout: Checkout | None = None) -> None:
        multiprocessing.set_forkserver_preload(list(PRELOADED))
        context: Any = multiprocessing.get_context(start_method(os.environ))
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, log, dict(os.environ), checkout), name="dsv4bench-worker"
        )
        # blocked across the start, so that a Ctrl-C reaches this process and never the worker; starting the tracker of
        # multiprocessing's resources, which a first start does, would unblock it again
        resource_tracker.ensure_running()
        earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        theirs.close()
        self._pid = self.process.pid

    def send(self, task: Probe | Measure | Trace | Go | Settled | Try | Appraise) -> None:
        """Give it a task; a worker that is gone is noticed by ``receive``."""
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def receive(self, timeout: float) -> Any:
        """The next message.

        Raises:
            TimeoutError: none within ``timeout`` seconds.
            EOFError: the process ended.
        """
        try:
            ready = self.connection.poll(max(timeout, 0.0))
            message = self.connection.recv() if ready else None
        except OSError as error:
            raise EOFError from error
        if not ready:
            raise TimeoutError
        return message

    def dismiss(self) -> None:
        """End an idle worker; under a profiler it ends by itself, since only then what was recorded is written."""
        if start_method(os.environ) == "spawn":
            self.connection.close()
            self.process.join(LAST_WORDS)
            if self.process.exitcode is not None:
                self._pid = None
        self.kill()

    def kill(self) -> None:
        """End the process and everything it started."""
        pid, self._pid = self._pid, None
        if pid is not None:  # once: later the number may be another process's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.connection.close()

    def obituary(self) -> str:
        """How the process ended, in words."""
        self.process.join(5.0)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
            return f"the worker process was killed by {name}{hint}"
        return f"the worker process ended with exit code {code}"


def await_found(worker: Worker, log: Path, about: str = "") -> Found:
    """The answer to a probe.

    Args:
        worker: has been sent a ``Probe``.
        log: where its output goes.
        about: says which worker it is, where there are several.

    Raises:
        MeasurementError: the process ends or hangs instead; the message has its last words.
    """
    try:
        found = worker.receive(START_TIMEOUT)
    except (TimeoutError, EOFError) as error:
        how = "it does not answer" if isinstance(error, TimeoutError) else worker.obituary()
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        last = f" ({lines[-1]})" if lines else ""
        worker.kill()
        raise MeasurementError(f"no worker process comes up{about}: {how}{last}") from error
    assert isinstance(found, Found)
    return found


def serve(
    connection: Connection, log: Path | None, environment: dict[str, str], checkout: Checkout | None = None
) -> None:
    """The worker's end: take tasks until the parent hangs up; kernels come from ``checkout`` if there is one.

    The environment is the parent's of now: the server that this process was forked from has an older one.
    """
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        os.setsid()  # a group of its own: killed as a whole, and not reached by the terminal's Ctrl-C
    _redirect_output(log)
    threading.Thread(target=_follow_parent, daemon=True).start()
    if checkout is not None:
        adopt(checkout)
    else:
        sys.path.insert(
            0, os.getcwd()
        )  # as under ``python -m``: code that is here goes before a copy that is installed
    from dsv4bench.bench.workshop import Workshop

    workshop = Workshop(connection.send, connection.recv)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if isinstance(task, Probe):
            connection.send(workshop.probe(task))
        elif isinstance(task, Try):
            from dsv4bench.bench.conformance import try_row

            connection.send(try_row(task))
        elif isinstance(task, Appraise):
            from dsv4bench.bench.conformance import appraise

            connection.send(appraise(task))
        elif isinstance(task, Trace):
            workshop.trace(task)
            return
        elif not workshop.measure(task):
            return


def _redirect_output(log: Path | None) -> None:
    """Whatever providers and libraries print goes to the log, if there is one: stdout holds results alone."""
    try:
        descriptor = os.dup(2) if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except FileNotFoundError:  # the run was given up, and its folder with it, before this process was there
        sys.exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the last words of a worker that is killed are in the log too
    faulthandler.enable()


def _follow_parent() -> None:
    """End with the parent, however it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)
