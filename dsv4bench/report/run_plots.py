"""The figures of a run: speedups over its baselines, how near stages are to their floors, KV bytes of layer kinds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4bench.analysis.speedup import speedups
from dsv4bench.errors import UserError
from dsv4bench.report.floor_plot import floor_figure, step_label
from dsv4bench.results.atomic import replacing
from dsv4bench.results.row import Row, Status
from dsv4bench.scenario.sizes import format_bytes, format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"swa": "#4477AA", "c4a": "#228833", "c128a": "#CCBB44", "dsa": "#BB5566", "model": "#AA3377"}
"""One colour a layer kind in every figure (Paul Tol's bright scheme, readable without colour vision)."""
_WHATS = {"stage": "Stages together:", "model": "Attention of all layers:"}
"""What the times of a run are of, by its kind; of layers unless named here."""
_HATCHES = ("", "////", "....", "xxxx")
"""One pattern a model."""


def plot_run(rows: Sequence[Row], baseline: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``speedups.png`` of what has a time, ``floors.png`` of what has a floor and ``kv_memory.png`` of bytes.

    Args:
        rows: of one run.
        baseline: the scenario's ``baseline`` section, ``{"provider": …, "model": …}``.
        folder: where to; made if missing.

    Raises:
        UserError: no row that is ok has either.
    """
    timed = [row for row in rows if row.status is Status.OK and row.layer]
    sized = [row for row in rows if row.status is Status.OK and row.memory]
    figures = {}
    if timed:
        figures["speedups"] = _speedup_figure(timed, baseline)
    if (floors := floor_figure(rows)) is not None:
        figures["floors"] = floors
    if sized:
        figures["kv_memory"] = _memory_figure(sized)
    if not figures:
        raise UserError("nothing to plot: no case of this run has a time or a number of bytes")
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        with replacing(path) as beside:
            figure.savefig(beside, dpi=150)
        paths.append(path)
    return paths


def _figure(width: float, columns: int = 1) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.2), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    return figure, list(axes)


def _series(row: Row) -> str:
    return f"{row.case['model']} {row.case['layer']} {row.case['provider']}"


def _speedup_figure(rows: Sequence[Row], baseline: dict[str, Any]) -> "Figure":
    found = speedups(rows, baseline.get("provider"), baseline.get("model"))
    what = _WHATS.get(rows[0].case["scenario_kind"], "Layer")
    of_model = " layer" if what == "Layer" else ""
    panels = [
        (f"over provider {baseline.get('provider')}", {row.case_id: found[row.case_id].provider for row in rows}),
        (f"over {baseline.get('model')}{of_model}", {row.case_id: found[row.case_id].model for row in rows}),
    ]
    shown: list[tuple[str, dict[str, float]]] = []
    for title, values in panels:
        others = {key: value for key, value in values.items() if value is not None}
        if any(value != 1.0 for value in others.values()):
            shown.append((title, others))
    if not shown:  # one provider and one model: nothing to be faster than, so the times themselves
        figure, (axis,) = _figure(_width(rows))
        _bars(axis, rows, {row.case_id: row.layer.median * 1e6 for row in rows if row.layer})
        axis.set_ylabel("time, µs")
        axis.set_title(f"{what} time (no other provider or model to compare with)")
        return figure
    figure, axes = _figure(_width(rows) * len(shown), len(shown))
    for axis, (title, known) in zip(axes, shown, strict=True):
        _bars(axis, [row for row in rows if row.case_id in known], known)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_ylabel("speedup, ×")
        axis.set_title(f"{what} speedup {title}")
    return figure


def _width(rows: Sequence[Row]) -> float:
    return max(6.0, 0.16 * len(rows) + 4.0)


def _bars(axis: "Axes", rows: Sequence[Row], values: dict[str, float]) -> None:
    """Grouped bars: a group a step (batch, context), a bar a layer and provider."""
    steps = list(dict.fromkeys((row.case["batch"], row.case["context"], step_label(row)) for row in rows))
    series = list(dict.fromkeys(_series(row) for row in rows))
    styles = _series_styles(rows)
    width = 0.8 / len(series)
    for row in rows:
        group = steps.index((row.case["batch"], row.case["context"], step_label(row)))
        place = group - 0.4 + width * (series.index(_series(row)) + 0.5)
        axis.bar(place, values[row.case_id], width * 0.92, **styles[_series(row)])
    axis.set_xticks(range(len(steps)), [label for _, _, label in steps])
    for name in series:
        axis.bar(0, 0, 0, label=name, **styles[name])
    axis.legend(fontsize=8, frameon=False)


def _series_styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Of each series: the layer kind's colour, in lighter tones for further providers, hatched for further models."""
    from matplotlib.colors import to_rgb

    providers = list(dict.fromkeys(row.case["provider"] for row in rows))
    models = list(dict.fromkeys(row.case["model"] for row in rows))
    styles = {}
    for row in rows:
        tone = 0.6 ** providers.index(row.case["provider"])
        colour = tuple(1 - (1 - part) * tone for part in to_rgb(_COLOURS[row.case["layer"]]))
        hatch = _HATCHES[models.index(row.case["model"]) % len(_HATCHES)]
        styles[_series(row)] = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "linewidth": 0}
    return styles


def _memory_figure(rows: Sequence[Row]) -> "Figure":
    """KV bytes per request of a layer, by context, one bar a layer kind."""
    bytes_of: dict[tuple[int, str], float] = {}
    colour: dict[str, str] = {}
    for row in rows:
        if row.memory:
            name = f"{row.case['model']} {row.case['layer']}"
            bytes_of[(row.case["context"], name)] = row.memory.ideal_bytes / row.case["batch"]
            colour[name] = _COLOURS[row.case["layer"]]
    contexts, names = sorted({key[0] for key in bytes_of}), list(colour)
    figure, (axis,) = _figure(max(6.0, 1.6 * len(contexts) + 2))
    width = 0.8 / max(len(names), 1)
    for (context, name), size in bytes_of.items():
        place = contexts.index(context) - 0.4 + width * (names.index(name) + 0.5)
        axis.scatter(place, size, s=60, color=colour[name])  # points: a bar's height means nothing on a log axis
        axis.annotate(format_bytes(size, 1), (place, size), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    for name in names:
        axis.scatter([], [], color=colour[name], label=name)
    axis.set_yscale("log")
    axis.margins(y=0.2)
    axis.set_xticks(range(len(contexts)), [format_tokens(context) for context in contexts])
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("KV bytes of one layer, one request")
    axis.set_title("KV memory per layer (ideal)")
    axis.legend(fontsize=8, frameon=False)
    return figure
