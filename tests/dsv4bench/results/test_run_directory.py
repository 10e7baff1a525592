"""The run directory: valid after every line, readable or refused with a reason."""

import json

import pytest

from dsv4bench.errors import IncomparableError, UserError
from dsv4bench.results.run_directory import (
    CASES,
    MANIFEST,
    SAMPLES,
    RunDirectory,
    new_run_path,
    read_run,
    write_run_file,
)
from tests.dsv4bench.stored_runs import around, row, run, write_directory


@pytest.fixture
def stored():
    return run([row("a", around(1e-3)), row("b", status="oom", reason="no memory")])


def test_a_run_comes_back_as_it_was_written(stored, tmp_path):
    read = read_run(write_directory(stored, tmp_path / "run"))
    assert read.manifest == stored.manifest
    assert read.rows == stored.rows
    assert read.missing == ()


def test_a_stored_file_comes_back_as_it_was_written(stored, tmp_path):
    write_run_file(stored, tmp_path / "deep" / "run.json")
    read = read_run(tmp_path / "deep" / "run.json")
    assert (read.manifest, read.rows) == (stored.manifest, stored.rows)
    lines = (tmp_path / "deep" / "run.json").read_text().splitlines()
    assert [line.startswith('{"schema_version"') for line in lines[-3:]] == [True, True, False]  # a line a row


def test_every_appended_row_can_be_read_at_once(stored, tmp_path):
    directory = RunDirectory.create(tmp_path / "run", stored.manifest)
    assert read_run(tmp_path / "run").missing == ("id-a", "id-b")
    directory.append_row(stored.rows[0])
    assert read_run(tmp_path / "run").rows == stored.rows[:1]
    assert read_run(tmp_path / "run").missing == ("id-b",)


def test_the_last_row_of_a_case_counts(stored, tmp_path):
    path = write_directory(stored, tmp_path / "run")
    again = row("b", around(2e-3))
    RunDirectory(path).append_row(again)
    assert read_run(path).rows == (stored.rows[0], again)


def test_a_line_torn_by_a_kill_is_dropped_when_resuming_and_refused_otherwise(stored, tmp_path):
    path = write_directory(stored, tmp_path / "run")
    whole = (path / CASES).read_bytes()
    (path / CASES).write_bytes(whole[:-20])
    with pytest.raises(IncomparableError, match=r"cases.jsonl:2: not valid JSON \(truncated\?\)"):
        read_run(path)
    assert read_run(path, torn=True).missing == ("id-b",)
    RunDirectory.reopen(path).append_row(stored.rows[1])
    assert (path / CASES).read_bytes() == whole


def test_samples_are_kept_by_line(stored, tmp_path):
    directory = RunDirectory.create(tmp_path / "run", stored.manifest)
    directory.append_samples([{"case_id": "a", "seconds": (1.0, 2.0)}])
    directory.append_samples([{"case_id": "b", "seconds": (3.0,)}])
    lines = (tmp_path / "run" / SAMPLES).read_text().splitlines()
    assert [json.loads(line)["seconds"] for line in lines] == [[1.0, 2.0], [3.0]]


def test_a_directory_that_holds_a_run_is_not_overwritten(stored, tmp_path):
    path = write_directory(stored, tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        RunDirectory.create(path, stored.manifest)


def test_run_paths_carry_time_and_name_and_never_collide(tmp_path):
    from datetime import UTC, datetime

    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = new_run_path(tmp_path, "decode", now)
    assert first.name == "20260102T030405Z-decode"
    first.mkdir()
    assert new_run_path(tmp_path, "decode", now).name == "20260102T030405Z-decode-2"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (MANIFEST, "{", "not valid JSON"),
        (MANIFEST, "[" * 100_000, "manifest.json:1: no result of a run: maximum recursion"),
        (CASES, "9" * 5000 + "\n", "cases.jsonl:1: no result of a run: Exceeds the limit"),
        (MANIFEST, '{"schema_version": 2}', "schema version 2, this release reads 1"),
        (MANIFEST, "[]", "schema version None"),
        (CASES, '{"schema_version": 99}\n', "schema version 99"),
        (CASES, '{"schema_version": 1}\n', "case_id: Field required"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(stored, tmp_path, name, text, message):
    path = write_directory(stored, tmp_path / "run")
    (path / name).write_text(text)
    with pytest.raises(IncomparableError, match=message) as error:
        read_run(path)
    assert str(path / name) in str(error.value)
    assert error.value.exit_code == 4


def test_nothing_there_is_refused(tmp_path):
    with pytest.raises(IncomparableError, match="no run at"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IncomparableError, match=r"no run at .*empty$"):
        read_run(tmp_path / "empty")
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "one.json").write_text("{}")
    with pytest.raises(IncomparableError, match=r"it holds stored runs: name one, such as .*stored/one\.json$"):
        read_run(tmp_path / "stored")
    for side in "ab":
        (tmp_path / "empty" / side).mkdir()
        (tmp_path / "empty" / side / "manifest.json").write_text("{}")
    with pytest.raises(IncomparableError, match=r"no run at .*empty; it holds the sides of an A/B run: .*/a and .*/b$"):
        read_run(tmp_path / "empty")


def test_not_a_number_is_refused(stored, tmp_path):
    path = write_directory(stored, tmp_path / "run")
    record = json.loads(stored.rows[0].model_dump_json())
    record["layer"]["median"] = float("nan")
    (path / CASES).write_text(json.dumps(record) + "\n")
    with pytest.raises(IncomparableError, match=r"layer.median"):
        read_run(path)
