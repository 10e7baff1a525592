"""The picture of how near stages come to their floors."""

import pytest

from dsv4bench.report.floor_plot import floor_figure
from dsv4bench.results.row import StageRow, Status
from tests.dsv4bench.stored_runs import around, row, timing

CASE = {"scenario_kind": "layer", "model": "v4-pro", "layer": "c4a", "boundary": "spread"}


def stage(name: str, seconds: float, floor: float | None, provider: str = "triton") -> StageRow:
    return StageRow(name=name, provider=provider, timing=timing(around(seconds), 1.98e9), floor=floor)


def measured(batch: int, *stages: StageRow, **case: str):
    changed = CASE | {"batch": batch, "context": 65536} | case
    return row(f"b{batch}{case}", around(1e-4), case=changed, stages=stages)


def texts(figure) -> list[list[str]]:
    return [[text.get_text() for text in axis.texts] for axis in figure.axes]


def test_a_panel_a_provider_shows_the_share_of_the_floor_in_percent() -> None:
    rows = [
        measured(1, stage("topk", 10e-6, 1e-6), stage("qkv_norm", 4e-6, 2e-6, "eager")),
        measured(8, stage("topk", 10e-6, 7e-6)),
    ]
    figure = floor_figure(rows)
    assert texts(figure) == [["10", "70"], ["50"]]
    assert [axis.get_title() for axis in figure.axes] == ["triton: % of floor", "eager: % of floor"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["v4-pro c4a topk"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["B=1\n64K", "B=8\n64K"]


def test_of_cases_that_look_alike_the_one_furthest_from_its_floor_is_shown() -> None:
    rows = [measured(1, stage("topk", 10e-6, floor)) for floor in (8e-6, 3e-6, 5e-6)]
    assert texts(floor_figure(rows)) == [["30"]]


def test_boundaries_are_columns_of_their_own() -> None:
    rows = [measured(1, stage("topk", 10e-6, 5e-6), boundary=boundary) for boundary in ("none", "all")]
    labels = [label.get_text() for label in floor_figure(rows).axes[0].get_xticklabels()]
    assert labels == ["B=1\n64K\nnone", "B=1\n64K\nall"]


@pytest.mark.parametrize("stages", [(), (stage("topk", 1e-5, None),), (stage("topk", 0.0, 1e-6),)])
def test_without_a_floor_there_is_no_picture(stages) -> None:
    assert floor_figure([measured(1, *stages), row("broken", status=Status.OOM, reason="too large")]) is None
