import pytest
import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.verify.suite import ROWS, Status, run_row
from dsv4bench.verify.trial import Setting
from tests.dsv4bench.verify import mutants

SWA, C4A, C128A, DSA = LayerKind.SWA, LayerKind.C4A, LayerKind.C128A, LayerKind.DSA

MUTANTS = [
    (1, C4A, mutants.first_entry_missing),
    (1, C128A, mutants.first_entry_missing),
    (1, C4A, mutants.missing_rows_take_part),
    (1, C4A, mutants.overlap_halves_swapped),
    (1, C4A, mutants.anchor_at_the_span_start),
    (1, C128A, mutants.ape_by_order_in_step),
    (1, C4A, mutants.joint_softmax_split),
    (1, SWA, mutants.no_sink),
    (1, SWA, mutants.not_rotated_back),
    (1, DSA, mutants.no_relu),
    (2, C4A, mutants.own_entry_invisible),
    (2, C128A, mutants.own_c128a_entry_invisible),
    (3, C4A, mutants.incomplete_group_visible),
    (3, C4A, mutants.masked_with_zero),
    (4, C4A, mutants.chunk_forgets_rows),
    (4, C128A, mutants.chunk_forgets_rows),
    (5, SWA, mutants.window_of_127),
    (5, SWA, mutants.window_of_129),
    (5, C128A, mutants.without_itself),
    (6, SWA, mutants.invalid_clamped_to_zero),
    (7, SWA, mutants.zero_by_zero),
    (7, C128A, mutants.lse_with_the_sink),
    (8, C4A, mutants.scales_after_each_key),
    (9, SWA, mutants.page_stride_ignored),
    (10, C128A, mutants.offsets_in_32_bits),
    (11, C4A, mutants.selects_from_nothing),
    (11, DSA, mutants.faults_on_nothing),
    (12, C4A, mutants.duplicates_fill_the_tail),
    (12, DSA, mutants.past_the_end),
    (13, C4A, mutants.last_column_of_a_tile_lost),
    (14, SWA, mutants.depends_on_the_row),
    (15, C4A, mutants.first_write_wins),
    (16, C4A, mutants.physically_preceding_page),
    (17, C4A, mutants.zero_times_nan),
    (18, SWA, mutants.batch_changes_the_result),
    (19, C4A, mutants.at_most_512),
    (20, SWA, mutants.yarn_everywhere),
    (20, C128A, mutants.one_theta),
    (21, SWA, mutants.window_keeps_the_end_of_a_chunk),
    (21, C128A, mutants.chunk_forgets_rows),
    (22, SWA, mutants.scale_by_floor),
    (22, C4A, mutants.scale_rounded_up_by_one_too_many),
    (22, C128A, mutants.scale_floor_on_the_scale),
]


def row(number):
    return next(row for row in ROWS if row.number == number)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("number", "kind", "make"), MUTANTS, ids=[f"{number}-{kind}-{make.__name__}" for number, kind, make in MUTANTS]
)
def test_a_mutant_is_caught_by_the_row_that_names_its_fault(number, kind, make):
    provider = make()
    outcome = run_row(provider, row(number), Setting(kind, quick=True))
    assert outcome.status is Status.FAIL
    assert any(name in outcome.reason for name in (*vars(provider), "layer"))


def test_every_row_has_a_mutant():
    assert {number for number, _, _ in MUTANTS} == {row.number for row in ROWS}


def test_a_mutant_that_is_a_documented_deviation_passes_once_it_is_allowed_by_name():
    setting = Setting(SWA, quick=True)
    provider = mutants.scale_floor_on_the_scale()
    refused = run_row(provider, row(22), setting)
    assert refused.status is Status.FAIL
    assert "--allow scale-floor" in refused.reason
    assert run_row(provider, row(22), setting, allow=frozenset({"scale-floor"})).status is Status.DEVIATION


def test_a_real_fault_does_not_pass_as_an_allowed_deviation():
    outcome = run_row(mutants.scale_by_floor(), row(22), Setting(SWA, quick=True), allow=frozenset({"scale-floor"}))
    assert outcome.status is Status.FAIL
