import pytest

from dsv4bench.errors import IncomparableError, UserError
from dsv4bench.results.baseline import find_base, store, stored_runs
from dsv4bench.results.row import Status
from dsv4bench.results.run_directory import read_run
from tests.dsv4bench.stored_runs import around, base_run, row, run, write_directory


def stored(tmp_path, day=1, run_id=None):
    return store(run([row("case", around(1e-4))], run_id or f"run{day}", day), tmp_path / "baselines")


def test_a_baseline_lies_under_its_gpu_and_scenario_by_time(tmp_path):
    assert stored(tmp_path, 3) == tmp_path / "baselines/h200/decode/20260103T000000Z.json"


def test_a_stored_run_reads_back_as_it_was(tmp_path):
    original = run([row("case", around(1e-4))], "run1")
    back = read_run(stored(tmp_path))
    assert (back.manifest, back.rows) == (original.manifest, original.rows)


def test_the_same_run_is_not_stored_twice(tmp_path):
    stored(tmp_path)
    with pytest.raises(UserError, match="stored already"):
        stored(tmp_path, 2, "run1")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"finished": None}, "unfinished"), ({"interrupted": True, "finished": None}, "unfinished")],
)
def test_an_unfinished_run_is_no_baseline(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        store(run([row("case", around(1e-4))], **change), tmp_path)


def test_a_run_with_a_wrong_result_is_no_baseline(tmp_path):
    wrong = run([row("case", around(1e-4)), row("wrong", status=Status.INCORRECT, reason="worst error 3")])
    with pytest.raises(UserError, match="wrong is incorrect, worst error 3"):
        store(wrong, tmp_path)


def test_a_run_in_which_nothing_was_measured_is_no_baseline(tmp_path):
    with pytest.raises(UserError, match="nothing in it was measured"):
        store(run([row("case", status=Status.UNSUPPORTED, reason="needs a GPU")]), tmp_path)


def test_the_base_is_found_at_any_level(tmp_path):
    for day in (2, 1, 3):
        stored(tmp_path, day)
    root = tmp_path / "baselines"
    manifest = run([]).manifest
    for place in (root, root / "h200", root / "h200/decode"):
        assert [found.manifest.run_id for found in find_base(place, manifest)] == ["run1", "run2", "run3"]
    assert len(find_base(root / "h200/decode/20260102T000000Z.json", manifest)) == 1
    assert len(find_base(write_directory(run([], "dir"), tmp_path / "dir"), manifest)) == 1


def test_no_baseline_is_refused_with_the_command_that_makes_one(tmp_path):
    with pytest.raises(IncomparableError, match="no baseline for decode on h200 .* baseline add"):
        find_base(tmp_path, run([]).manifest)


def test_a_run_whose_only_baseline_is_itself_is_told_so(tmp_path):
    itself = read_run(stored(tmp_path)).manifest
    with pytest.raises(IncomparableError, match="no baseline but the run itself for decode"):
        find_base(tmp_path / "baselines", itself)


def test_a_stored_self_test_is_no_baseline(tmp_path):
    folder = stored(tmp_path).parent
    (folder / "selftest.json").write_text("{}")
    assert len(stored_runs(folder)) == 1


def test_a_run_is_never_its_own_baseline(tmp_path):
    for day in (1, 2, 3):
        stored(tmp_path, day)
    folder = tmp_path / "baselines"
    assert [found.manifest.run_id for found in find_base(folder, run([], "run2").manifest)] == ["run1", "run3"]
    with pytest.raises(IncomparableError, match="is the run itself"):
        find_base(folder / "h200/decode/20260102T000000Z.json", run([], "run2").manifest)


def test_both_sides_of_an_ab_run_can_be_stored(tmp_path):
    paths = [store(make([row("case", around(1e-4))]), tmp_path) for make in (base_run, run)]
    assert [path.name for path in paths] == ["20260101T000000Z.json", "20260101T000000Z-2.json"]
