"""How near each stage comes to its floor at every shape, as a picture: dark cells are where a kernel loses."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4bench.results.row import Row
from dsv4bench.scenario.sizes import format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = dict[tuple[str, str], float]
"""(stage, shape) → floor over time."""


def floor_figure(rows: Sequence[Row]) -> "Figure | None":
    """A panel a provider, a line a stage of a layer kind, a column a shape; None where no stage has a floor.

    Of cases that differ in something else, such as the cache precision, the one furthest from its floor is shown.
    """
    panels: dict[str, Cells] = {}
    by_boundary = len({row.case.get("boundary") for row in rows}) > 1
    for row in rows:
        for stage in row.stages:
            if (share := stage.floor_share) is not None:
                cells = panels.setdefault(stage.provider, {})
                key = _line(row, stage.name), _column(row, by_boundary)
                cells[key] = min(share, cells.get(key, math.inf))
    if not panels:
        return None
    from matplotlib.figure import Figure

    widths = [len({column for _, column in cells}) for cells in panels.values()]
    height = max(len({line for line, _ in cells}) for cells in panels.values())
    figure = Figure(figsize=(sum(0.55 * width + 3.6 for width in widths), 0.22 * height + 1.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=[width + 6 for width in widths])[0]
    for axis, (provider, cells) in zip(axes, panels.items(), strict=True):
        _draw(axis, cells)
        axis.set_title(f"{provider}: % of floor", fontsize=9)
    return figure


def _line(row: Row, stage: str) -> str:
    model, layer = row.case["model"], row.case["layer"]
    return f"{model} {stage}" if layer == "model" else f"{model} {layer} {stage}"


def step_label(row: Row) -> str:
    """A step in two short lines: batch and context."""
    return f"B={row.case['batch']}\n{format_tokens(row.case['context'])}"


def _column(row: Row, by_boundary: bool) -> str:
    return f"{step_label(row)}\n{row.case['boundary']}" if by_boundary else step_label(row)


def _draw(axis: "Axes", cells: Cells) -> None:
    lines, columns = (list(dict.fromkeys(key[side] for key in cells)) for side in (0, 1))
    lines.sort()
    table = [[cells.get((line, column), math.nan) for column in columns] for line in lines]
    axis.imshow(table, cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto")
    for (line, column), share in cells.items():
        colour = "white" if share < 0.6 else "black"
        place = columns.index(column), lines.index(line)
        axis.text(*place, f"{100 * share:.0f}", color=colour, ha="center", va="center", fontsize=7)
    axis.set_xticks(range(len(columns)), columns, fontsize=7)
    axis.set_yticks(range(len(lines)), lines, fontsize=7)
