"""Measuring one comparison: its sides prepared, checked, timed in interleaved rounds, checked again, summed up."""

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dsv4bench.bench.check import check_replay, check_run, check_values, share_of_tolerance, with_format_figures, worse
from dsv4bench.bench.compilation import CompileLog
from dsv4bench.bench.energy import cuda_checkpoint, energy_per_call
from dsv4bench.bench.failure import UnsupportedError, status_of
from dsv4bench.bench.l2 import input_sets, make_flush
from dsv4bench.bench.launches import count_all
from dsv4bench.bench.load import busy_elsewhere, crowded, read_cpu
from dsv4bench.bench.messages import Measured
from dsv4bench.bench.model_side import Casts, load_casts, make_contestant
from dsv4bench.bench.padding import padding
from dsv4bench.bench.rounds import Agree, Kept, Turn, run_rounds, seed_of
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.side import WHOLE, Contestant, Report
from dsv4bench.bench.spending import Spending
from dsv4bench.bench.summary import timing_of
from dsv4bench.bench.telemetry import Sensor
from dsv4bench.bench.timers import timer_of
from dsv4bench.bench.window import Window, calls_of, read_card, replays, time_calls
from dsv4bench.results.row import Accuracy, Row, StageRow, Status
from dsv4bench.scenario.case import Case
from dsv4bench.stack.layer import Layer
from dsv4bench.stack.model import Model
from dsv4bench.stack.scopes import scope

T = TypeVar("T")

Tensors = Callable[[Sequence[Case]], Layer | Model]
"""Gives the weights and caches that cases share, drawing them if need be."""

AwaitTurn = Callable[[Turn["Contender"]], None]
"""Returns when a turn may be taken: sides in other processes have theirs as well."""

PADDING = 64 * 2**20
"""A round's buffers lie behind a pad of random size up to this, so that no two rounds share their addresses."""


class PoisonedError(Exception):
    """The device context no longer works; the process has to end."""


@dataclass
class Contender:
    """A case on its way to a row."""

    case: Case
    casts: Casts = field(default_factory=dict)
    side: Contestant | None = None
    launches: dict[str, int | None] = field(default_factory=dict)
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    compiled: dict[str, float] = field(default_factory=dict)
    kv_bytes: int | None = None
    measured: Measured | None = None


class Comparison:
    """Measures the cases of one comparison on the current device."""

    def __init__(
        self,
        settings: Settings,
        sensor: Sensor | None,
        log: CompileLog,
        spending: Spending,
        report: Report,
        await_turn: AwaitTurn,
        agree: Agree | None = None,
    ) -> None:
        self._settings, self._sensor, self._log = settings, sensor, log
        self._spending, self._report = spending, report
        self._await_turn, self._agree = await_turn, agree
        self._on_cpu = settings.device.type == "cpu"

    def measure(self, cases: Sequence[Case], tensors: Tensors) -> Iterator[Measured]:
        """Measure cases that share a ``round_id``: each yields one row, whatever happens to it.

        Tensors are drawn only if there is a case that this machine can run.

        Raises:
            PoisonedError: after the row of the case that broke the device; the others have to be measured elsewhere.
        """
        contenders = [Contender(case) for case in cases]
        try:
            self._measure(contenders, tensors)
        except PoisonedError:
            yield from (contender.measured for contender in contenders if contender.measured)
            raise
        yield from (contender.measured for contender in contenders if contender.measured)

    def _measure(self, contenders: Sequence[Contender], tensors: Tensors) -> None:
        for contender in contenders:
            self._guard(contender, "loading providers", self._load)
        if not (able := _unfinished(contenders)):
            return
        try:
            layer = tensors([contender.case for contender in able])
        except Exception as error:  # what prevented the tensors that cases share is the row of each
            traceback.print_exception(error)
            self._fail(able, error)
            return
        for contender in able:
            self._guard(contender, "preparing", partial(self._prepare, layer))
        able = _unfinished(able)
        for contender, kept in zip(able, self._rounds(able), strict=True):
            if contender.measured is None:
                self._guard(contender, "finishing", partial(self._finish, kept))

    def _guard(self, contender: Contender, doing: str, action: Callable[[Contender], T]) -> T | None:
        """Do something for a case; an exception becomes its row, and a broken device ends the process."""
        self._report(contender.case.case_id, doing)
        before = dict(self._log.seconds)
        try:
            return action(contender)
        except Exception as error:  # whatever a provider raises belongs into its row
            self._fail([contender], error)
            return None
        finally:
            for kernel, seconds in self._log.since(before).items():
                contender.compiled[kernel] = contender.compiled.get(kernel, 0.0) + seconds

    def _fail(self, contenders: Sequence[Contender], error: Exception) -> None:
        """Make an exception the row of cases; on a GPU, free what it held and see whether the context still works."""
        for contender in contenders:
            contender.measured = Measured(self._settings.failed(contender.case, *status_of(error)))
        if self._settings.device.type != "cuda":
            return
        import torch

        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as broken:
            raise PoisonedError(str(broken)) from error

    def _load(self, contender: Contender) -> None:
        """Load the providers and ask whether they, and the timer, can do this case."""
        contract = self._settings.contract(contender.case)
        with self._spending.on("loading providers"):
            contender.casts = load_casts(contender.case, self._settings)
        if reason := timer_of(contract).unavailable():
            raise UnsupportedError(f"timer {contract.timer} is not available here: {reason}")

    def _prepare(self, layer: Layer | Model, contender: Contender) -> None:
        """Run once (which compiles), compare with the reference, count launches."""
        case, timing = contender.case, self._settings.timing
        side = contender.side = make_contestant(case, self._settings, layer, contender.casts)
        with self._spending.on("compile and first run"):
            values = side.inputs(seed_of(timing.seed, case.pair_id, "before"))
        contender.kv_bytes = side.kv_bytes(values)
        if self._settings.check:
            with self._spending.on("checks"):
                found = check_values(side, values)
                contender.accuracy = with_format_figures(side, found, self._settings.device.torch_name)
        if self._settings.device.type == "cuda":
            with self._spending.on("launch counts"):
                contender.launches = count_all(side.calls(values))

    def _rounds(self, contenders: Sequence[Contender]) -> list[Kept[Window]]:
        if not contenders:
            return []
        timing = self._settings.timing
        return run_rounds(
            contenders,
            timing.rounds,
            self._take_turn,
            lambda window: window.spoiled_by,
            base_seed=timing.seed,
            pair_id=contenders[0].case.round_id,
            first=self._settings.first_round,
            agree=self._agree,
        )

    def _take_turn(self, turn: Turn[Contender]) -> Window | None:
        self._await_turn(turn)
        again = f", attempt {turn.attempt + 1}" if turn.attempt else ""
        doing = f"round {turn.round + 1} of {self._settings.first_round + self._settings.timing.rounds}{again}"
        return self._guard(turn.side, doing, partial(self._window, turn))

    def _window(self, turn: Turn[Contender], contender: Contender) -> Window:
        side, timing, spending = _side(contender), self._settings.timing, self._spending
        with spending.on("inputs"):
            pad = self._fresh_allocation(turn.seed)
            flush = make_flush(side.contract, self._settings.device.torch_name)
            calls = calls_of(side, turn.seed, input_sets(side.contract))
        before, began = read_card(self._sensor), read_cpu() if self._on_cpu else None
        samples, discarded = {}, 0
        with scope(contender.case.label):
            for name, each in calls.items():
                with spending.on("timing"):
                    samples[name], more = time_calls(side.contract, each, timing, flush, self._log)
                discarded += more
        ended = read_cpu() if began else None
        del pad
        readings = before + read_card(self._sensor)
        cpu = began.until(ended) if began and ended else None
        return Window(turn.round, turn.attempt, turn.seed, samples, readings, discarded, cpu)

    def _fresh_allocation(self, seed: int) -> object:
        """Give cached memory back and shift the addresses of what comes next by a random pad."""
        if self._settings.device.type != "cuda":
            return None
        import torch

        torch.cuda.empty_cache()
        size = random.Random(seed).randrange(1, PADDING)
        return torch.empty(size, dtype=torch.uint8, device=self._settings.device.torch_name)

    def _finish(self, kept: Kept[Window], contender: Contender) -> None:
        """Check once more on fresh inputs, take the energy, and make the row."""
        side, settings = _side(contender), self._settings
        if kept.spoiled_by:
            reasons = ", ".join(kept.spoiled_by)
            reason = f"{kept.repeated + 1} rounds throttled ({reasons}); cool the card and run it again"
            contender.measured = Measured(settings.failed(contender.case, Status.INVALID_THERMAL, reason))
            return
        if settings.check:
            with self._spending.on("checks"):
                seed = seed_of(settings.timing.seed, contender.case.pair_id, "after")
                contender.accuracy = worse(contender.accuracy, check_run(side, seed))
                if side.contract.graph:
                    contender.accuracy = worse(contender.accuracy, check_replay(side, seed))
        windows = kept.results
        row = self._row(contender, side, windows)
        row.warnings += _warn_of_others(row, windows)
        if kept.repeated:
            row.warnings.append(f"{kept.repeated} throttled rounds were repeated")
        case_id = contender.case.case_id
        contender.measured = Measured(
            row,
            [record for window in windows for record in window.samples_records(case_id)],
            [record for window in windows for record in window.telemetry_records(case_id)],
            contender.kv_bytes,
        )

    def _row(self, contender: Contender, side: Contestant, windows: Sequence[Window]) -> Row:
        case, accuracy = contender.case, contender.accuracy
        stages = []
        for stage in side.timed:
            name = stage.name
            what = name if name in windows[0].samples else WHOLE
            alone = case.scenario_kind == "stage"  # there the stages are what is compared, so they keep their rounds
            timing = timing_of(windows, what, contender.launches.get(what), keep_rounds=alone)
            provider = side.provider_of(name)
            extra = padding(getattr(side, "providers", {}).get(name), name, case)
            row = StageRow(name=name, provider=provider, timing=timing, accuracy=accuracy.get(name), extra=extra)
            stages.append(row)
        whole = timing_of(windows, WHOLE, contender.launches.get(WHOLE), keep_rounds=True)
        about: dict[str, Any] = {"discarded_windows": sum(window.discarded for window in windows)}
        if contender.compiled:
            about["compiled"] = contender.compiled
            about["cache_bytes"] = {
                kernel: size for kernel, size in self._log.cached_bytes.items() if kernel in contender.compiled
            }
        return self._settings.measured(
            case,
            layer=whole,
            stages=stages,
            accuracy=max(accuracy.values(), key=share_of_tolerance, default=None),
            compile_seconds=sum(contender.compiled.values()),
            energy_joules=self._energy(side, whole.median),
            extra=about,
        )

    def _energy(self, side: Contestant, seconds: float) -> float | None:
        sensor = self._sensor
        if sensor is None or self._settings.device.type != "cuda" or not self._settings.timing.energy:
            return None

        with self._spending.on("energy"):
            values = side.inputs(seed_of(self._settings.timing.seed, side.case.pair_id, "energy"))
            call = replays([side.calls(values)[WHOLE]], graph=side.contract.graph)[0]
            return energy_per_call(sensor.energy, call, cuda_checkpoint, seconds)


def _warn_of_others(row: Row, windows: Sequence[Window]) -> list[str]:
    """Note on a row how far others computed while a CPU was timed, and say so where it was too far."""
    others = busy_elsewhere(window.cpu for window in windows if window.cpu)
    if others is None:
        return []
    import torch

    row.extra["busy_elsewhere"] = others
    return crowded(others, torch.get_num_threads(), os.cpu_count() or 1)


def _unfinished(contenders: Sequence[Contender]) -> list[Contender]:
    """Those without a row yet."""
    return [contender for contender in contenders if contender.measured is None]


def _side(contender: Contender) -> Contestant:
    if contender.side is None:
        raise RuntimeError("a case is measured before it is prepared")
    return contender.side
