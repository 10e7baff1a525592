"""Figures of stream schedules and of whole models: gain over batch, speedup over context."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4bench.analysis.model_step import model_steps, speedup_over
from dsv4bench.analysis.overlap import gains
from dsv4bench.results.atomic import replacing
from dsv4bench.results.row import Row
from dsv4bench.scenario.sizes import format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = dict[str, list[tuple[int, float]]]
"""Points (x, y) by legend."""


def further_figures(rows: Sequence[Row], baseline: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``schedule_gain.png`` where schedules were measured and ``speedup_over_context.png`` for models."""
    figures = {"schedule_gain": _gain_figure(rows)}
    if model := baseline.get("model"):
        figures["speedup_over_context"] = _context_figure(rows, model)
    written = []
    for name, figure in figures.items():
        if figure is not None:
            path = folder / f"{name}.png"
            with replacing(path) as beside:
                figure.savefig(beside, dpi=150)
            written.append(path)
    return written


def _gain_figure(rows: Sequence[Row]) -> "Figure | None":
    """Gain in per cent over batch, a panel a layer kind, dashed: what the critical path would allow."""
    found = gains(rows)
    kinds = list(dict.fromkeys(str(gain.case["layer"]) for gain in found))
    if not kinds:
        return None
    figure, axes = _panels(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        measured: Line = {}
        allowed: Line = {}
        for gain in (gain for gain in found if gain.case["layer"] == kind):
            case = gain.case
            name = f"{case['model']} {case['streams']} {case['provider']} {format_tokens(int(str(case['context'])))}"
            batch = int(str(case["batch"]))
            measured.setdefault(name, []).append((batch, 100 * gain.gain))
            allowed.setdefault(name, []).append((batch, 100 * gain.most))
        _lines(axis, measured, allowed)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xlabel("batch")
        axis.set_ylabel("gain over serial, %")
        axis.set_title(kind)
    return figure


def _context_figure(rows: Sequence[Row], baseline: str) -> "Figure | None":
    """Speedup of a model's attention over the baseline model's, by context."""
    found = speedup_over(model_steps(rows), baseline)
    phases = list(dict.fromkeys(str(step.case["phase"]) for step, _ in found))
    if not phases:
        return None
    figure, axes = _panels(len(phases))
    for axis, phase in zip(axes, phases, strict=True):
        lines: Line = {}
        for step, factor in found:
            if step.case["phase"] == phase:
                query = int(str(step.case["query_len"]))
                what = f"B={step.case['batch']}" if phase == "decode" else f"chunk {format_tokens(query)}"
                lines.setdefault(f"{step.model} {what} {step.case['provider']}", []).append((step.context, factor))
        _lines(axis, lines, {})
        axis.axhline(1, color="black", linewidth=0.8)
        contexts = sorted({context for points in lines.values() for context, _ in points})
        axis.set_xticks(contexts, [format_tokens(context) for context in contexts], rotation=45, fontsize=7)
        axis.minorticks_off()
        axis.set_xlabel("context, tokens")
        axis.set_ylabel(f"attention speedup over {baseline}, ×")
        axis.set_title(phase)
    return figure


def _panels(count: int) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * count, 4.2), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.set_xscale("log", base=2)
    return figure, list(axes)


def _lines(axis: "Axes", solid: Line, dashed: Line) -> None:
    for number, (name, points) in enumerate(solid.items()):
        colour = f"C{number % 10}"
        axis.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, color=colour, label=name)
        if name in dashed:
            axis.plot(*zip(*sorted(dashed[name]), strict=True), linestyle="--", linewidth=1, color=colour)
    axis.legend(fontsize=7, frameon=False)
