"""The figure of ``memory --plot``: bytes by layer, bytes over context, concurrency over the longest request."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4bench.errors import UserError
from dsv4bench.memory.account import Account, View
from dsv4bench.memory.ideal import ideal_usage
from dsv4bench.memory.usage import PARTS, Usage
from dsv4bench.model.shape import LayerKind
from dsv4bench.report.memory_tables import precision_label, three_digits
from dsv4bench.results.atomic import replacing
from dsv4bench.scenario.sizes import format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"main": "#4477AA", "indexer": "#EE6677", "window": "#228833", "state": "#CCBB44", "padding": "#BBBBBB"}
"""Paul Tol's bright scheme, readable without colour vision."""
_MIB, _GIB = 2**20, 2**30
_SUFFIXES = (".png", ".svg", ".pdf")


def check_target(path: Path) -> None:
    """Whether a figure can be written there, to know before the work is done.

    Raises:
        UserError: an unknown suffix, or a folder that is not there.
    """
    if path.suffix not in _SUFFIXES:
        raise UserError(f"--plot: {path} must end in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise UserError(f"--plot: the folder {path.parent} does not exist")


def plot_memory(account: Account, path: Path) -> Path:
    """Draw an accounting.

    Args:
        account: what to draw; without a capacity there is no third panel.
        path: where to; the suffix decides the format.

    Raises:
        UserError: as `check_target`.
    """
    check_target(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 9), layout="constrained")
    axes = figure.subplot_mosaic("AABB;CCDD" if account.capacity is not None else "AAAA;BBCC")
    for axis in axes.values():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    _plot_layers(account, axes["A"])
    _plot_kinds(account, axes["B"])
    _plot_contexts(account, axes["C"])
    if account.capacity is not None:
        _plot_concurrency(account, axes["D"])
    figure.suptitle(_title(account), x=0.01, ha="left", fontsize=13)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=120)
    return path


def _title(account: Account) -> str:
    what = account.engine.title if account.engine else "ideal"
    size, name = format_tokens(account.context), account.view.shape.name
    return f"KV cache of one request of {size} tokens: {name}, {what}, {precision_label(account.view)}"


def _views(account: Account) -> list[View]:
    return [account.view] + ([account.baseline] if account.baseline else [])


def _plot_layers(account: Account, axis: "Axes") -> None:
    """Stacked bars, one a layer; the baseline's beside them, hatched."""
    views = _views(account)
    width = 0.85 / len(views)
    for number, view in enumerate(views):
        usage = view.engine or view.ideal
        places = [layer + (number - (len(views) - 1) / 2) * width for layer in range(len(usage.layers))]
        below = [0.0] * len(usage.layers)
        for part in PARTS:
            heights = [getattr(layer, part) / _MIB for layer in usage.layers]
            if any(heights):
                axis.bar(places, heights, width, below, color=_COLOURS[part], label=None if number else part,
                         hatch="////" if number else None, edgecolor="white", linewidth=0.2)  # fmt: skip
                below = [low + high for low, high in zip(below, heights, strict=True)]
    axis.set_ylim(0, axis.get_ylim()[1] * 1.15)
    axis.set_xlabel("layer")
    axis.set_ylabel("MiB")
    hatched = f", {views[1].shape.name} hatched" if len(views) > 1 else ""
    axis.set_title(f"By layer{hatched}", loc="left")
    axis.legend(ncols=len(PARTS), frameon=False, loc="upper left", fontsize=9)


def _plot_kinds(account: Account, axis: "Axes") -> None:
    """What one layer of each kind is made of, as shares, with its size."""
    bars = {}
    for view in reversed(_views(account)):
        usage = view.engine or view.ideal
        for kind in reversed(list(dict.fromkeys(layer.kind for layer in usage.layers))):
            bars[f"{kind} ({view.shape.name})"] = next(layer for layer in usage.layers if layer.kind is kind)
    for place, layer in enumerate(bars.values()):
        left = 0.0
        for part in PARTS:
            share = 100 * getattr(layer, part) / layer.total if layer.total else 0.0
            axis.barh(place, share, left=left, color=_COLOURS[part], height=0.6)
            left += share
        axis.annotate(three_digits(layer.total), (101, place), va="center")
    axis.set_yticks(range(len(bars)), list(bars))
    axis.set_xlim(0, 118)
    axis.set_xticks(range(0, 101, 20))
    axis.set_xlabel("per cent of the layer's bytes")
    axis.set_title("One layer of each kind, colours as in 'By layer'", loc="left")


def _contexts(longest: int) -> list[int]:
    """Powers of two from 1K, and the longest itself."""
    points = [2**power for power in range(10, 41) if 2**power < longest]
    return [*points, longest]


def _plot_contexts(account: Account, axis: "Axes") -> None:
    """Bytes of one request over its length, log–log."""
    points = _contexts(max(account.context, 16384))
    for view, colour in ((account.view, "#4477AA"), (account.baseline, "#EE6677")):
        if view is None:
            continue
        ideal = [ideal_usage(view.shape, n, view.entry, _kinds(view.ideal)).total / _GIB for n in points]
        axis.plot(points, ideal, "--", color=colour, label=f"{view.shape.name}, ideal")
    if account.engine is not None:
        held = [account.engine.usage(account.deployment, n).total / _GIB for n in points]
        axis.plot(points, held, "-o", color="#4477AA", markersize=3, label=f"{account.view.shape.name}, engine")
    if account.measured_bytes is not None:
        axis.plot([account.context], [account.measured_bytes / _GIB], "D", color="black", label="measured")
    _token_axis(axis, points, "tokens of the request")
    axis.set_yscale("log")
    axis.set_ylabel("GiB per request")
    axis.set_title("Over context", loc="left")
    axis.legend(frameon=False)


def _kinds(usage: Usage) -> tuple[LayerKind, ...]:
    return tuple(layer.kind for layer in usage.layers)


def _plot_concurrency(account: Account, axis: "Axes") -> None:
    """How many requests fit, over max_model_len, at the memory that was given."""
    assert account.engine is not None
    assert account.capacity is not None
    points = _contexts(max(account.deployment.max_model_len, 16384))
    got = account.capacity
    found = [account.engine.capacity(account.deployment.at(n), got.available_bytes, _blocks(account)) for n in points]
    if decoding := [each.decoding_requests for each in found if each.decoding_requests is not None]:
        axis.plot(points, decoding, "--", color="#4477AA", label="decoding")
    axis.plot(points, [each.concurrency for each in found], "-o", color="#4477AA", markersize=3, label="concurrency")
    axis.legend(frameon=False)
    axis.plot([got.max_model_len], [got.concurrency], "D", color="black")
    axis.annotate(f"{got.concurrency:.2f}×", (got.max_model_len, got.concurrency), textcoords="offset points",
                  xytext=(0, 9), ha="center")  # fmt: skip
    axis.axhline(1, color="#BB5566", linewidth=1)
    _token_axis(axis, points, "max_model_len")
    axis.set_yscale("log")
    axis.set_ylabel("requests")
    axis.set_title("Requests that fit, per GPU and dp rank (red: one)", loc="left")


def _blocks(account: Account) -> int | None:
    """The given number of blocks, where no memory was given."""
    return account.capacity.num_blocks if account.capacity and account.budget is None else None


def _token_axis(axis: "Axes", points: Sequence[int], label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(points, [format_tokens(point) for point in points])
    axis.minorticks_off()
    axis.set_xlabel(label)
