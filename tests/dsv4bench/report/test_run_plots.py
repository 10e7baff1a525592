"""The figures of a run: what there is to plot, and nothing else."""

import pytest

from dsv4bench.errors import UserError
from dsv4bench.report.run_plots import _series_styles, plot_run
from dsv4bench.results.row import MemoryFigures, Status
from tests.dsv4bench.stored_runs import around, row

CASE = {"model": "v4-flash", "layer": "c4a", "provider": "eager", "batch": 1, "context": 65536, "stages": []}
BYTES = MemoryFigures(ideal_bytes=2048)


def written(rows, folder):
    return [path.name for path in plot_run(rows, {}, folder) if path.stat().st_size]


def test_a_run_of_bytes_alone_has_the_figure_of_bytes_alone(tmp_path):
    rows = [row("kv", case=CASE | {"scenario_kind": "memory"}, memory=BYTES)]
    assert written(rows, tmp_path / "figures") == ["kv_memory.png"]


def test_a_run_of_layers_has_both_figures(tmp_path):
    rows = [row("layer", around(1e-4), case=CASE | {"scenario_kind": "layer"}, memory=BYTES)]
    assert written(rows, tmp_path) == ["speedups.png", "kv_memory.png"]


def test_a_run_without_any_number_is_refused_and_leaves_no_folder(tmp_path):
    rows = [row("broken", case=CASE, status=Status.RUNTIME_ERROR, reason="boom")]
    with pytest.raises(UserError, match="nothing to plot"):
        plot_run(rows, {}, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_bars_of_two_models_and_two_providers_all_look_different():
    rows = [
        row(f"{model}-{provider}", around(1e-4), case=CASE | {"model": model, "provider": provider})
        for model in ("v4-flash", "v4-pro")
        for provider in ("eager", "triton")
    ]
    styles = _series_styles(rows)
    assert len({(style["facecolor"], style["hatch"]) for style in styles.values()}) == len(rows) == len(styles)
    assert styles["v4-flash c4a eager"]["facecolor"] == styles["v4-pro c4a eager"]["facecolor"]
