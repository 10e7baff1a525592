import pytest
import torch
from dsv4_kernels import reference

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.reference import ReferenceProvider
from dsv4bench.verify.replay import replay, save_failure
from dsv4bench.verify.suite import ROWS, Status, run_row
from dsv4bench.verify.trial import Setting
from tests.dsv4bench.verify import mutants


def failed(number, kind, provider):
    return run_row(provider, ROWS[number - 1], Setting(kind, quick=True))


@pytest.mark.parametrize(
    ("number", "kind", "make"),
    [
        (7, LayerKind.SWA, mutants.zero_by_zero),
        (2, LayerKind.C4A, mutants.own_entry_invisible),
        (1, LayerKind.C128A, mutants.first_entry_missing),
        (10, LayerKind.SWA, mutants.offsets_in_32_bits),
    ],
)
def test_a_saved_failure_fails_again_and_passes_with_the_fault_repaired(number, kind, make, tmp_path):
    outcome = failed(number, kind, make())
    path = save_failure(outcome, tmp_path)
    again = replay(path, make())
    assert again.status is Status.FAIL
    assert len(again.checks) == 1
    mended = replay(path, ReferenceProvider())
    assert mended.status is Status.PASS
    assert mended.reason == f"failed when it was saved, passes now; it was {outcome.reason}"


def zeroed_logits():
    def topk(**arguments):
        chosen = reference.topk(**arguments)
        arguments["logits"].zero_()
        return chosen

    return mutants.provider(topk=topk)


def writes_slot_0():
    return mutants.changed("compressor_state_save", lambda a: {"state_slots": a["state_slots"].clamp_min(0)})


@pytest.mark.parametrize(("number", "make"), [(12, zeroed_logits), (7, writes_slot_0)])
def test_a_call_that_wrote_where_it_must_not_fails_again_though_it_has_written_once(number, make, tmp_path):
    path = save_failure(failed(number, LayerKind.C4A, make()), tmp_path)
    assert replay(path, make()).status is Status.FAIL
    assert replay(path, ReferenceProvider()).status is Status.PASS


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    outcome = failed(7, LayerKind.SWA, mutants.zero_by_zero())
    path = save_failure(outcome, tmp_path)
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_failure(outcome, tmp_path)
    assert caught.value.filename == str(path)


def test_the_file_is_small_even_where_the_cache_has_gigabytes(tmp_path):
    path = save_failure(failed(10, LayerKind.SWA, mutants.offsets_in_32_bits()), tmp_path)
    assert path.stat().st_size < 2_000_000


def test_a_failure_between_two_runs_is_tried_as_a_row_again(tmp_path):
    outcome = failed(14, LayerKind.SWA, mutants.depends_on_the_row())
    assert outcome.failed_call is None, "every single call is within its tolerance"
    path = save_failure(outcome, tmp_path)
    assert replay(path, mutants.depends_on_the_row()).status is Status.FAIL
    mended = replay(path, ReferenceProvider())
    assert (mended.status, mended.reason[:38]) == (Status.PASS, "failed when it was saved, passes now; ")


def test_a_file_that_is_none_of_ours_is_refused(tmp_path):
    other = tmp_path / "other.pt"
    torch.save({"weights": torch.ones(2)}, other)
    with pytest.raises(UserError, match="not a file that verify saved"):
        replay(other, ReferenceProvider())
    with pytest.raises(UserError, match="no such file"):
        replay(tmp_path / "missing.pt", ReferenceProvider())
