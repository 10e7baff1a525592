import csv
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dsv4bench.cli.verify import _collect, verify
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.model.shape import LayerKind

FAULTY = """
import os
import signal

import torch
from dsv4_kernels import reference
from dsv4bench.providers.base import SUPPORTED, Support


class Faulty:
    name = "faulty"

    def supports(self, need):
        return SUPPORTED

    def topk(self, *, logits, candidate_lens, k):
        chosen = reference.topk(logits=logits, candidate_lens=candidate_lens, k=k)
        return chosen.clamp_min(0)


class Right(Faulty):
    topk = staticmethod(reference.topk)


class Raising(Faulty):
    def topk(self, **tensors):
        raise ZeroDivisionError("division by zero")


class Dying(Right):
    def topk(self, *, logits, candidate_lens, k):
        if k == 1024:
            os.kill(os.getpid(), signal.SIGKILL)
        return reference.topk(logits=logits, candidate_lens=candidate_lens, k=k)


class Ending(Right):
    def topk(self, *, logits, candidate_lens, k):
        if set(candidate_lens.tolist()) == {1024}:  # as in the figures over fp32 caches
            os._exit(3)
        return reference.topk(logits=logits, candidate_lens=candidate_lens, k=k)


class Refusing(Right):
    def supports(self, need):
        return Support.no("needs an SM90 card")


class Misspelt(Right):
    def index_maps(self, **tensors):
        return None


class PlainYes(Faulty):
    def supports(self, need):
        return True


class Half(Faulty):
    topk = None

    def sparse_attention(self, **tensors):
        return reference.sparse_attention(**tensors)[0]
"""


def invoke(*words: str):
    app = typer.Typer()
    app.command()(verify)
    return CliRunner().invoke(app, [*words, "--device", "cpu", *(() if "--replay" in words else ("--quick",))])


def output(*words: str, code: int = 0) -> str:
    result = invoke(*words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def provider(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(FAULTY)
    return path


def test_the_table_says_case_stages_status_error_and_where():
    lines = output("--only", "empty-rows", "--layer", "swa").splitlines()
    assert lines[0].split() == ["row", "case", "layer", "cache", "stages", "status", "worst", "error", "where"]
    stages = ["query_norm_rope_insert,", "sparse_attention"]
    assert lines[1].split()[:7] == ["7", "empty-rows", "swa", "fp8+fp8", *stages, "pass"]


def test_an_interrupted_check_shows_what_it_tried(provider, monkeypatch):
    from dsv4bench.bench import conformance

    waited, wait = [], conformance.wait

    def interrupt_the_second(*arguments):
        if waited:
            raise KeyboardInterrupt
        waited.append(True)
        return wait(*arguments)

    monkeypatch.setattr(conformance, "wait", interrupt_the_second)
    words = ("--only", "short-contexts", "--only", "tile-edges", "--provider", f"{provider}:Right")
    lines = output(*words, code=130).splitlines()
    assert "short-contexts" in lines[1]
    assert not any("tile-edges" in line for line in lines)


def test_accuracy_is_in_the_output_as_numbers():
    content = json.loads(output("--only", "own-entry", "--layer", "c4a", "--format", "json"))
    figures = {row["stage"]: row for row in content["accuracy"]}
    assert 0.8 < figures["topk"]["recall"] < 1
    assert 30 < figures["compress_norm_rope_insert"]["snr_db"] < 34
    assert figures["sparse_attention"]["lse_error_fp32"] > 0
    assert content["outcomes"][0]["status"] == "pass"


def test_csv_has_a_line_per_outcome():
    rows = list(csv.DictReader(io.StringIO(output("--only", "12", "--format", "csv"))))
    assert [(row["row"], row["layer"], row["status"]) for row in rows] == [("12", "c4a", "pass"), ("12", "dsa", "pass")]


def test_a_failure_ends_with_exit_code_5_and_a_file_that_replays_it(provider, tmp_path):
    saved = tmp_path / "failures"
    with pytest.raises(MeasurementError, match=r"not conformant: 2 fail") as error:
        output("--provider", f"{provider}:Faulty", "--only", "12", "--save", str(saved))
    assert error.value.exit_code == 5
    files = sorted(saved.rglob("*.pt"))
    assert [path.name for path in files] == ["row12-c4a-fp8+fp8.pt", "row12-dsa-fp8+fp8.pt"]
    with pytest.raises(MeasurementError):
        output("--provider", f"{provider}:Faulty", "--replay", str(files[0]))
    mended = output("--provider", f"{provider}:Right", "--replay", str(files[0])).splitlines()[1]
    assert "  pass  " in mended
    assert "failed when it was saved, passes now; it was topk: indices: token " in mended


def test_an_interruption_between_two_rows_ends_what_is_under_way(monkeypatch):
    from dsv4bench.verify.suite import ROWS, Outcome, Status
    from dsv4bench.verify.trial import Setting

    setting, ended = Setting(LayerKind.C4A), []

    def found():
        try:
            for row in ROWS[:2]:
                yield Outcome(row, setting, Status.PASS, ("topk",))
        finally:
            ended.append(True)

    def interrupt(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsv4bench.cli.verify.typer.echo", interrupt)
    under_way = found()  # held, so that it does not end by being forgotten
    outcomes, finished = _collect(under_way, [(row, setting) for row in ROWS[:2]])
    assert ([outcome.row.number for outcome in outcomes], finished, ended) == ([1], False, [True])


@pytest.mark.parametrize(
    ("name", "row", "finding"),
    [
        ("Raising", "12", "ZeroDivisionError: division by zero (kernels.py:27)"),
        ("Half", "7", "returned 1 output, 2 expected"),
    ],
)
def test_a_kernel_that_breaks_is_a_row_of_the_table_and_no_traceback(provider, tmp_path, name, row, finding):
    words = ("--provider", f"{provider}:{name}", "--only", row, "--layer", "c4a", "--save", str(tmp_path / "f"))
    result = invoke(*words)
    assert isinstance(result.exception, MeasurementError)
    assert finding in result.stdout
    assert "no figures over fp32 caches for c4a fp8+fp8: " in result.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_rows_come_in_order_and_one_that_kills_its_process_fails_alone(provider, tmp_path, jobs):
    words = ("--provider", f"{provider}:Dying", "--only", "19", "--only", "12", "--only", "6", "--layer", "c4a")
    result = invoke(*words, "--layer", "dsa", "--jobs", jobs, "--save", str(tmp_path / "f"))
    assert isinstance(result.exception, MeasurementError)
    assert str(result.exception).endswith(
        "is not conformant: 2 pass, 1 fail, 2 skipped (not shown: 2 rows about stages that it lacks)"
    )
    shown = [line.split() for line in result.stdout.splitlines()[1:4]]
    assert [(words[0], words[2], words[words.index("fp8+fp8") + 1 :][:2]) for words in shown] == [
        ("12", "c4a", ["topk", "pass"]),
        ("12", "dsa", ["topk", "pass"]),
        ("19", "c4a", ["fail", "layer:"]),
    ]
    assert "layer: the worker process was killed by SIGKILL" in result.stdout


def test_a_provider_that_ends_its_process_in_the_figures_alone_leaves_the_verdicts(provider, tmp_path):
    words = ("--provider", f"{provider}:Ending", "--only", "12", "--layer", "c4a", "--save", str(tmp_path / "f"))
    result = invoke(*words)
    assert result.exit_code == 0
    assert "topk    pass" in result.stdout
    ended = "no figures over fp32 caches for c4a fp8+fp8: the worker process ended with exit code 3"
    assert ended in result.stderr


def test_a_failure_in_a_process_of_its_own_is_saved_and_replays(provider, tmp_path):
    words = ("--provider", f"{provider}:Faulty", "--only", "12", "--layer", "c4a", "--save", str(tmp_path / "f"))
    with pytest.raises(MeasurementError, match="not conformant: 1 fail"):
        output(*words, "--jobs", "3")
    (path,) = (tmp_path / "f").rglob("*.pt")
    with pytest.raises(MeasurementError, match="not conformant: 1 fail"):
        output("--provider", f"{provider}:Faulty", "--replay", str(path))


def test_support_that_is_no_support_is_refused_in_a_sentence(provider):
    with pytest.raises(UserError, match=r"supports\(need\) of provider 'faulty' returned True; return a Support of"):
        output("--provider", f"{provider}:PlainYes", "--only", "12", "--layer", "c4a")


def test_failures_of_two_providers_are_kept_apart(provider, tmp_path):
    provider.write_text(FAULTY + "\n\nclass Other(Faulty):\n    pass\n")
    for name in ("Faulty", "Other"):
        with pytest.raises(MeasurementError, match="not conformant"):
            output("--provider", f"{provider}:{name}", "--only", "12", "--layer", "c4a", "--save", str(tmp_path / "f"))
    assert len(list((tmp_path / "f").rglob("row12-c4a-fp8+fp8.pt"))) == 2


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(provider, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't write .*file/below: .*; --save names another folder") as error:
        output("--provider", f"{provider}:Faulty", "--only", "12", "--save", str(tmp_path / "file" / "below"))
    assert error.value.exit_code == 2


def test_where_nothing_fails_no_folder_is_made(tmp_path):
    output("--only", "12", "--layer", "c4a", "--save", str(tmp_path / "f"))
    assert not (tmp_path / "f").exists()


def test_accuracy_is_given_for_the_stages_that_the_provider_has_alone(provider):
    words = ("--provider", f"{provider}:Right", "--only", "19", "--layer", "c4a", "--format", "json")
    assert {row["stage"] for row in json.loads(output(*words))["accuracy"]} == {"topk"}


def test_a_provider_of_one_stage_skips_the_rows_about_others(provider):
    content = json.loads(output("--provider", f"{provider}:Right", "--only", "6", "--only", "19", "--format", "json"))
    assert {row["row"]: row["status"] for row in content["outcomes"]} == {6: "skipped", 19: "pass"}


def test_nothing_checked_is_not_a_pass(provider):
    with pytest.raises(MeasurementError, match="nothing of .* was checked: 4 rows: it lacks their stages$"):
        output("--provider", f"{provider}:Right", "--only", "6")


def test_why_nothing_was_checked_is_told_by_row(provider):
    words = ("--provider", f"{provider}:Refusing", "--only", "6", "--only", "12")
    right = "was checked: 4 rows: it lacks their stages; 2 rows: needs an SM90 card$"
    with pytest.raises(MeasurementError, match=right):
        output(*words)


def test_a_method_that_is_nearly_named_like_a_stage_is_named_once(provider):
    result = invoke("--provider", f"{provider}:Misspelt", "--only", "12", "--layer", "c4a")
    assert result.exit_code == 0
    said = f"{provider}:Misspelt: its method index_maps is no stage and is never called; did you mean index_map?"
    assert result.stderr.count("did you mean") == 1
    assert said in result.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "99"], "neither a row nor a stage"),
        (["--cache", "fp8"], r"expected MAIN\+INDEXER"),
        (["--provider", "nobody"], "unknown provider"),
        (["--replay", "missing.pt"], "no such file"),
        (["--replay", "missing.pt", "--only", "7"], "--replay does not read --only"),
        (["--only", "topk", "--layer", "swa"], "--only topk: layers of kind swa have no such stage"),
        (["--provider", "eager,topk=mine.py:Mine"], "verify takes one provider and fills in stages that it lacks"),
        (["--allow", "foo"], "--allow foo: no such deviation; the known ones are scale-floor, bf16-keys"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(words, message):
    with pytest.raises(UserError, match=message):
        output(*words)


def test_the_provider_of_the_documentation_is_conformant():
    """docs/providers.md prints this file; what it claims to implement is checked here."""
    root = Path(__file__).parents[3]
    text = (root / "docs" / "providers.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert code == (root / "docs" / "examples" / "my_topk.py").read_text()
    assert len([line for line in code.splitlines() if line]) <= 20
    assert "pass" in output("--provider", f"{root / 'docs/examples/my_topk.py'}:MyTopk", "--only", "12")
