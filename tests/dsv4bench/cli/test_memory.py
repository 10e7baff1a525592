"""``dsv4bench memory`` as a user calls it."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dsv4bench.cli.memory import memory
from dsv4bench.errors import UserError

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
APP = typer.Typer()
APP.command()(memory)


def call(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "110", "NO_COLOR": "1"}).invoke(APP, arguments)


def text(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.exception
    return result.stdout


def load(*arguments: str) -> dict:  # type: ignore[type-arg]
    found: dict = json.loads(text(*arguments, "--format", "json"))  # type: ignore[type-arg]
    return found


def error(*arguments: str) -> str:
    result = call(*arguments)
    assert isinstance(result.exception, UserError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_the_default_is_v4_pro_against_v32_at_a_million_tokens() -> None:
    found = text("--ctx", "1M")
    assert "9.62 GiB against 83.9 GiB for v3.2 (main bf16, indexer bf16): 8.7× less" in found
    assert "9,848 B per token + 7.63 MiB fixed" in found
    assert "main bf16, indexer bf16 (defaults for ideal)" in found
    assert "compressor state, not in the ideal figure: 17.84 MiB a request" in found


def test_the_json_of_the_ideal_view_has_the_documented_keys() -> None:
    found = load("--ctx", "1M")
    assert found["ideal_bytes"] == 10_334_371_840
    assert found["baseline_ideal_bytes"] == 90_060_095_488
    assert round(found["ratio"], 3) == 8.715
    assert (found["model"], found["baseline"], found["context"]) == ("v4-pro", "v3.2", 1_048_576)
    precisions = ("main", "indexer", "baseline_main", "baseline_indexer")
    assert [found[key] for key in precisions] == ["bf16"] * 4
    assert found["fixed_bytes"] == 61 * 128 * 1024
    assert found["bytes_per_token"] == 9848
    assert found["state_bytes"] == 18_710_528
    assert found["layers"][2] == {"layer": 2, "kind": "c4a", "ideal_bytes": 335_675_392}
    assert sum(layer["ideal_bytes"] for layer in found["layers"]) == found["ideal_bytes"]
    for key in ("engine_bytes", "measured_bytes", "num_blocks", "blocks_per_request", "concurrency", "group_bytes"):
        assert found[key] is None


def test_the_json_of_a_capacity_is_what_the_server_logged() -> None:
    found = load(
        "--engine", "vllm@0.27.1", "--model", "v4-flash", "--max-model-len", "1M", "--max-num-batched-tokens", "8192",
        "--async-scheduling", "--available", "28235618304B",
    )  # fmt: skip
    assert found["num_blocks"] == 28_172
    assert found["blocks_per_request"] == 10_778
    assert round(found["concurrency"], 2) == 2.61
    assert found["kv_cache_tokens"] == 2_740_813
    assert found["group_bytes"] == [1_002_240, 823_680, 786_240, 870_912, 656_640]
    assert found["engine_bytes"] == 4122 * 1_002_240
    assert found["checked"] is True
    assert found["main"] == "fp8"


def test_by_page_shows_three_buckets_and_the_padding_of_each_cache() -> None:
    found = text("--by", "page")
    assert "37,440 / 8,640 / 1,728 B" in found
    rows = list(csv.DictReader(io.StringIO(text("--by", "page", "--format", "csv"))))
    assert {row["cache"]: int(row["padding_bytes"]) for row in rows}["c128a_main"] == 560
    assert len(rows) == 7


@pytest.mark.parametrize(("by", "rows"), [("layer", 62), ("kind", 3), ("total", 1)])
def test_csv_has_a_row_for_each_and_a_total(by: str, rows: int) -> None:
    found = list(csv.DictReader(io.StringIO(text("--ctx", "1M", "--by", by, "--format", "csv"))))
    assert len(found) == rows
    assert int(found[-1]["ideal_bytes"]) == 10_334_371_840
    assert sum(int(row["ideal_bytes"]) for row in found[:-1]) in (0, 10_334_371_840)


def test_engine_bytes_of_the_rows_add_up_to_the_total() -> None:
    rows = list(csv.DictReader(io.StringIO(text("--engine", "vllm", "--ctx", "64K", "--by", "layer", "-f", "csv"))))
    assert sum(int(row["engine_bytes"]) for row in rows[:-1]) == int(rows[-1]["engine_bytes"])


def test_markdown_is_a_table() -> None:
    found = text("--ctx", "1M", "--format", "md")
    assert found.startswith("### KV cache of v4-pro at 1M tokens (1,048,576): ideal")
    assert "| kind | main | indexer | window | ideal |\n| --- | --- | --- | --- | --- |" in found


def test_explain_prints_each_term_with_its_numbers() -> None:
    found = text(
        "--engine", "vllm@0.28", "--model", "v4-flash", "--available", "26.3GiB", "--async-scheduling", "--explain"
    )
    assert "c4_state: ⌈min(7 + 16,384, 1,048,576)/4⌉ + 1 = 4,099 blocks" in found
    assert "tokens in flight F = 8,192 · 2 (async scheduling) = 16,384" in found
    assert "blocks per request = 4,096 + 259 + 259 + 4,099 + 2,065 = 10,778" in found
    assert "(128 + 1,048,576//4)·584 + (1,048,576//4)·132 = 187,769,856 B each" in found


def test_capacity_of_a_gpu_lists_what_was_given_and_what_was_not() -> None:
    found = text(
        "--engine", "vllm@0.31", "--gpu", "8xH200", "--tp", "8", "--weights", "19.8GiB", "--utilization", "0.9",
        "--max-model-len", "1M",
    )  # fmt: skip
    for line in ("per GPU and dp rank: KV is replicated over tp 8, split over dp 1", "not counted  give --activations",
                 "− 19.8 GiB  as given", "derived: concurrency × max_model_len", "predicted, not checked"):  # fmt: skip
        assert line in found


def test_what_a_gpu_cannot_run_is_noted() -> None:
    found = text("--engine", "vllm", "--indexer", "fp4", "--layout", "flashinfer", "--gpu", "H200")
    assert "an fp4 indexer needs a data-centre Blackwell GPU (sm_100, sm_103); H200 is sm_90" in found
    assert "FlashInfer's sparse layout needs sm_100 or sm_120; H200 is sm_90" in found
    assert "needs" not in text("--engine", "vllm", "--indexer", "fp4", "--layout", "flashinfer", "--gpu", "B200")


def test_dp_ranks_add_up() -> None:
    found = load("--engine", "vllm", "--gpu", "8xH200", "--tp", "4", "--dp", "2", "--weights", "90GiB")
    assert found["total_concurrency"] == 2 * found["concurrency"]
    assert found["gpus"] == 8


def test_sglang_and_llama_cpp_answer_in_their_own_terms() -> None:
    sglang = load(
        "--engine", "sglang", "--model", "v4-flash", "--state", "bf16", "--available", "45.26GiB",
        "--fixed-state", "0.33GiB",
    )  # fmt: skip
    assert round(sglang["engine_bytes_per_token"], 2) == 7033.45
    assert sglang["fixed_state_bytes"] == int(0.33 * 2**30)
    assert sglang["pools"] == {"full": 6_859_008, "swa": 685_824, "c4": 1_714_752, "c128": 53_586}
    llama = load("--engine", "llama.cpp", "--model", "v4-flash", "--ctx", "128K", "--cache-type", "f16")
    assert llama["buffers"]["CSA"] == 672 * 2**20
    assert llama["engine_bytes"] == sum(llama["buffers"].values())


def test_a_config_json_is_a_model() -> None:
    found = load("--model", str(DATA / "configs" / "v4_flash.json"), "--ctx", "1M", "--main", "fp8")
    assert found["ideal_bytes"] == 4_040_494_080
    again = load("--model", str(DATA / "configs" / "v4_flash.json"), "--engine", "vllm@0.28")
    assert again["checked"] is True


@pytest.mark.parametrize(
    ("preset", "field", "value", "most"),
    [
        ("v3_2", "num_hidden_layers", 10**9, "4,096"),
        ("v4_flash", "num_hidden_layers", 10**9, "4,096"),
        ("v3_2", "num_nextn_predict_layers", 10**9, "4,096"),
        ("v4_flash", "num_nextn_predict_layers", 10**9, "4,096"),
        ("v4_flash", "hidden_size", 10**30, "16,777,216"),
        ("v4_flash", "max_position_embeddings", 10**30, "1,099,511,627,776"),
    ],
)
def test_an_absurd_size_in_a_config_json_is_refused_by_its_field(
    tmp_path: Path, preset: str, field: str, value: int, most: str
) -> None:
    config = json.loads((DATA / "configs" / f"{preset}.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {field: value}))
    found = error("--model", str(path))
    assert found == f"{path}: {field} must be an integer of at most {most}, got {value:,}"


@pytest.mark.parametrize("number", ["1e400", "1" + 400 * "0", "1" + 5000 * "0"])
def test_a_number_beyond_all_numbers_in_a_config_json_is_no_traceback(tmp_path: Path, number: str) -> None:
    text = (DATA / "configs" / "v4_flash.json").read_text()
    path = tmp_path / "config.json"
    path.write_text(text.replace('"rms_norm_eps": 1e-06', f'"rms_norm_eps": {number}'))
    assert path.read_text() != text
    assert error("--model", str(path)).startswith(f"{path}: ")


def test_a_request_that_the_window_pool_does_not_hold_is_not_said_to_fit() -> None:
    flags = ("--engine", "sglang", "--model", "v4-flash", "--available", "20MiB", "--swa-ratio", "0.01")
    assert "no request fits, however short\n" in text(*flags, "--ctx", "256")


@pytest.mark.parametrize(
    ("arguments", "checked"),
    [
        (["--engine", "vllm@0.33"], True),
        (["--engine", "vllm@9.9"], False),
        (["--engine", "sglang"], False),
        (["--engine", "sglang", "--state", "bf16"], True),
        (["--engine", "llama.cpp", "--ctx", "128K"], True),
        (["--engine", "llama.cpp", "--ctx", "16K"], False),
    ],
)
def test_only_what_a_log_covers_is_said_to_be_checked(arguments: list[str], checked: bool) -> None:
    found = text("--model", "v4-flash", *arguments)
    assert ("\nchecked against a server's log\n" in found) == checked
    assert ("\npredicted, not checked against a log\n" in found) != checked


@pytest.mark.parametrize("context", ["0", "1", "3", "4", "127", "128", "257"])
def test_short_contexts_are_exact_in_every_engine(context: str) -> None:
    for engine in ("ideal", "vllm", "sglang", "llama.cpp", "ik_llama.cpp"):
        found = load("--model", "v4-flash", "--ctx", context, "--engine", engine)
        assert found["context"] == int(context)
        assert found["ideal_bytes"] <= (found["engine_bytes"] or found["ideal_bytes"])


def test_a_context_beyond_the_model_is_computed_with_a_warning() -> None:
    assert "2,097,152 tokens are beyond the 1,048,576 that v4-pro declares" in text("--ctx", "2M")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--available", "12GiB", "--ctx", "1M"], "1 request of 1M fits\n"),
        (["--available", "26.3GiB", "--ctx", "1M"], "3 requests of 1M fit\n"),
        (
            ["--gpu", "8xH200", "--tp", "4", "--dp", "2", "--weights", "100GiB", "--ctx", "1M"],
            "6 requests of 1M fit: 3 on each of 2 dp ranks\n",
        ),
        (["--available", "1GiB", "--ctx", "1M"], "a request of 1M does not fit, the longest that does has "),
        (["--available", "1KiB"], "no request fits, however short\n"),
        (["--available", "0GiB"], "no request fits, however short\n"),
    ],
)
def test_how_many_whole_requests_fit_is_said(arguments: list[str], sentence: str) -> None:
    assert sentence in text("--engine", "vllm@0.31", "--model", "v4-flash", *arguments)


def test_the_longest_request_that_is_said_to_fit_does_and_one_token_more_does_not() -> None:
    small = ("--engine", "vllm", "--model", "v4-flash", "--available", "2GiB", "--max-model-len")
    longest = load(*small, "1M")["largest_context"]
    assert load(*small, str(longest))["concurrency"] >= 1
    assert load(*small, str(longest + 1))["concurrency"] < 1


def test_headings_and_the_sentences_of_a_capacity_fit_a_terminal_of_80_columns() -> None:
    found = text("--engine", "vllm@0.31", "--model", "v4-flash", "--available", "26.3GiB", "--mtp", "1")
    for start in ("KV cache of", "main fp8", "figures are per GPU", "Capacity for", "Workspaces"):
        line = next(line for line in found.splitlines() if line.startswith(start))
        assert len(line.rstrip()) <= 80, line


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_printed() -> None:
    for target in ("x.txt", "no/such/x.png"):
        assert call("--ctx", "1M", "--plot", target).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "v5"], "unknown model 'v5'"),
        (["--model", ""], "unknown model ''"),
        (["--model", str(DATA)], "data: the folder has no config.json"),
        (["--ctx", "-4"], "--ctx: '-4' is not a number of tokens"),
        (["--ctx", "8Q"], "--ctx: unknown suffix 'Q'"),
        (["--engine", "vllm@0.3"], "unknown vLLM version '0.3'; known are 0.20 … 0.33"),
        (["--engine", "mlc"], "unknown engine 'mlc': known are ideal, vllm, sglang, llama.cpp, ik_llama.cpp"),
        (["--engine", "vllm", "--layout", "x"], "--layout must be flashmla or flashinfer, got 'x'"),
        (["--engine", "vllm", "--gpu", "8xTPU"], "unknown GPU 'TPU': known are A100-80G, H100"),
        (["--engine", "vllm", "--available", "80G"], "--available: unknown unit 'G'"),
        (["--engine", "vllm", "--available", "80"], "--available: '80' has no unit; write 80GiB, or 80B for bytes"),
        (["--engine", "vllm", "--gpu", "H200", "--weights", "110"], "--weights: '110' has no unit"),
        (["--engine", "vllm", "--gpu", "-1xH200"], "--gpu: '-1xH200' is not of the form 8xH200"),
        (["--engine", "vllm", "--gpu", "8xH200"], "dp 1 · pp 1 = 1; make them equal, such as --tp 8"),
        (["--engine", "llama.cpp", "--gpu", "2xH200"], "--gpu: llama.cpp is accounted on one GPU; give --gpu H200"),
        (["--gpu", "8xH200"], "capacity needs an allocator: give --engine"),
        (
            ["--engine", "vllm", "--gpu", "H200", "--available", "9GiB"],
            "give one of --available, --gpu and --num-blocks",
        ),
        (["--engine", "vllm", "--weights", "9GiB"], "need --gpu, such as --gpu 8xH200"),
        (["--engine", "vllm", "--weights", "9GiB", "--available", "9GiB"], "--available is what they leave"),
        (["--engine", "vllm", "--num-blocks", "0"], "--num-blocks must be at least 1, got 0"),
        (
            ["--engine", "vllm", "--max-model-len", "0", "--available", "9GiB"],
            "--max-model-len must be at least 1, got 0",
        ),
        (["--engine", "vllm", "--ctx", "0", "--available", "9GiB"], "--ctx must be at least 1, got 0: what fits is"),
        (["--engine", "sglang", "--ctx", "0", "--gpu", "H200"], "--ctx must be at least 1, got 0: what fits is"),
        (["--simulate", "chat", "--ctx", "0"], "--ctx must be at least 1, got 0: what fits is"),
        (
            ["--engine", "vllm", "--num-blocks", "1" + 400 * "0"],
            "--num-blocks must be at most 4,611,686,018,427,387,904",
        ),
        (["--engine", "sglang", "--c128-state-rows", "-5"], "--c128-state-rows must be at least 0, got -5"),
        (["--engine", "llama.cpp", "--window-cells", "1"], "must be at least 128, the sliding window of v4-pro, got 1"),
        (["--engine", "ik_llama.cpp", "--window-cells", "512"], "means nothing to ik_llama.cpp; it is for llama.cpp"),
        (["--available", "9GiB"], "capacity needs an allocator: give --engine"),
        (["--format", "xml"], "--format must be one of table, json, csv, md, got 'xml'"),
        (["--by", "head"], "--by must be one of layer, kind, page, total, got 'head'"),
        (["--by", "page", "--engine", "sglang"], "--by page: only vllm has pages"),
        (["--tp", "8"], "--tp means nothing to ideal; it is for vllm, sglang"),
        (["--engine", "vllm", "--swa-ratio", "0.2"], "--swa-ratio means nothing to vLLM (packed); it is for sglang"),
        (["--engine", "sglang", "--num-blocks", "5"], "--num-blocks: SGLang's pools are counted in tokens"),
        (["--engine", "llama.cpp", "--main", "fp8"], "--main means nothing to llama.cpp; it has --cache-type"),
        (["--main", "int4"], "--main must be bf16 or fp8, got 'int4'"),
        (["--model", "v3.2", "--main", "fp8", "--indexer", "fp4"], "--indexer of v3.2 must be one of bf16, fp8"),
        (["--measure"], "--measure allocates blocks: give --engine vllm"),
        (["--simulate", "nothing"], "is no file and no mix"),
        (["--simulate", "chat", "--requests", "0"], "--requests must be from 1 to 1,000,000, got 0"),
        (["--simulate", "chat", "--requests", "2m"], "--requests must be from 1 to 1,000,000, got 2,000,000"),
        (["--simulate", "chat", "--requests", "-1"], "--requests: '-1' is not a number of requests such as"),
        (["--simulate", "chat", "--requests", "1.5"], "--requests: '1.5' is not a whole number of requests"),
        (["--simulate", "chat", "--rate", "-1"], "--rate must be above 0, got -1"),
        (["--simulate", "chat", "--decode-rate", "nan"], "--decode-rate must be above 0, got nan"),
        (["--simulate", "chat", "--prefill-rate", "0"], "--prefill-rate must be above 0, got 0"),
        (["--simulate", "chat", "--prefill-rate", "-1"], "--prefill-rate: '-1' is not a number of tokens per second"),
        (["--simulate", "chat", "--retention", "300"], "--retention must be 0 or a multiple of 256, got 300"),
        (["--simulate", "chat", "--tp", "2"], "--tp is read with --gpu only"),
        (["--simulate", "chat", "--engine", "sglang"], "--simulate replays block allocators: give --engine vllm"),
        (["--from-log", "none.log"], "--from-log: none.log cannot be read (No such file or directory)"),
        (["--from-log", "x.log", "-c", "1M", "-e", "vllm"], "--from-log does not read --ctx, --engine"),
        (["--device", "cuda"], "--device is read with --measure only"),
        (["--rate", "3", "--requests", "5"], "--requests, --rate are read with --simulate only"),
        (["--simulate", "agents", "--plot", "x.png"], "--simulate does not read --plot"),
        (["--engine", "vllm", "--utilization", "0.5", "--available", "9GiB"], "--utilization is read with --gpu only"),
        (["--logits-budget", "1GiB"], "--logits-budget is read with --gpu or --available only"),
        (["--engine", "vllm", "--in-flight-tokens", "9", "--async-scheduling"], "does not read --async-scheduling"),
        (["--explain", "--format", "csv"], "--format csv does not read --explain"),
        (["--engine", "vllm", "--available", "9GiB", "--format", "csv"], "--format csv does not read --available"),
        (["--engine", "vllm", "--tp", "3"], "tp 3 does not divide 128 heads and 16 output groups of v4-pro"),
        (
            ["--engine", "vllm", "--ctx", "1M", "--max-model-len", "128K"],
            "--ctx 1,048,576 is longer than --max-model-len 131,072: no engine admits that request",
        ),
        (["--engine", "ideal@2"], "--engine ideal@2: the ideal has no versions; say ideal"),
        (["--plot", "x.txt"], "--plot: x.txt must end in .png, .svg, .pdf"),
        (["--plot", "no/such/x.png"], "--plot: the folder no/such does not exist"),
    ],
)
def test_wrong_input_is_one_sentence_that_says_what_would_be_right(arguments: list[str], message: str) -> None:
    assert message in error(*arguments)


@pytest.mark.parametrize(
    ("engine", "flags", "named"),
    [
        ("vllm", ["--async-scheduling"], "--async-scheduling is"),
        ("vllm", ["--max-num-batched-tokens", "16K"], "--max-num-batched-tokens is"),
        ("vllm", ["--in-flight-tokens", "100"], "--in-flight-tokens is"),
        ("vllm", ["--tp", "4", "--dp", "2"], "--tp, --dp are"),
        ("vllm", ["--dp", "2", "--tp", "2", "--dcp", "2"], "--dp is"),
        ("vllm", ["--max-model-len", "1M"], "--max-model-len beside --ctx is"),
        ("sglang", ["--fixed-state", "1GiB"], "--fixed-state is"),
    ],
)
def test_flags_that_decide_only_how_much_fits_are_refused_where_that_is_not_asked(
    engine: str, flags: list[str], named: str
) -> None:
    counted = "--gpu, --available or --num-blocks" if engine == "vllm" else "--gpu or --available"
    asked = ("--model", "v4-flash", "--engine", engine, "--ctx", "8K", *flags)
    assert error(*asked) == f"{named} read with {counted} only"
    assert call(*asked, "--available", "30GiB").exit_code == 0


def test_flags_that_change_a_single_request_need_no_capacity() -> None:
    asked = ("--model", "v4-flash", "--engine", "vllm")
    plain = text(*asked, "--ctx", "8K")
    assert text(*asked, "--ctx", "8K", "--pp", "2") != plain
    assert text(*asked, "--ctx", "8K", "--tp", "2", "--dcp", "2") != plain
    assert text(*asked, "--max-model-len", "8K") == plain


def test_dp_attention_of_sglang_is_said_to_be_written_otherwise_here() -> None:
    asked = ("--model", "v4-flash", "--engine", "sglang", "--gpu", "8xH200")
    assert "SGLang's dp attention, whose --dp 8 divides --tp 8, is --tp 1 --dp 8" in error(
        *asked, "--tp", "8", "--dp", "8"
    )
    assert "--dp 4 divides --tp 8, is --tp 2 --dp 4" in error(*asked, "--tp", "8", "--dp", "4")
    assert "tp 8 · dp 3 · pp 1 = 24; make them equal" in error(*asked, "--tp", "8", "--dp", "3")
    assert "tp 8 · dp 8 · pp 1 = 64; make them equal" in error(*asked, "--engine", "vllm", "--tp", "8", "--dp", "8")
    assert "8 dp ranks" in text(*asked, "--tp", "1", "--dp", "8")


def test_the_fixed_state_of_sglang_is_a_line_of_its_budget() -> None:
    asked = ("--model", "v4-flash", "--engine", "sglang", "--fixed-state", "1GiB", "--c128-state-rows", "0")
    found = text(*asked, "--gpu", "H200", "--weights", "60GiB")
    whole, state, pools = (
        float(re.search(rf"{name} +(?:− )?([\d.]+) GiB", found)[1])  # type: ignore[index]
        for name in ("for the KV cache", "request-scoped state", "for its pools")
    )
    assert (state, pools) == (1, pytest.approx(whole - state, abs=0.1))
    assert "request-scoped state   − 1.00 GiB  as given" in text(*asked, "--available", "40GiB")
    assert "request-scoped state" not in text(*asked[:4], "--state", "bf16", "--gpu", "H200", "--c128-state-rows", "1")


def test_a_trace_file_is_replayed_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"arrival": 0, "prompt": 600, "output": 5}\n')
    assert "Replay of 1 request" in text("--simulate", str(path), "--retention", "512")
    assert error("--simulate", str(path), "--requests", "5", "--rate", "2") == (
        f"--simulate {path} does not read --requests, --rate"
    )


def test_a_table_in_a_pipe_is_as_wide_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--model", "v4-flash", "--by", "page", "--engine", "vllm@0.24")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "bucket  layers  entries" in CliRunner().invoke(APP, asked).stdout
    assert "buc…" in CliRunner(env={"COLUMNS": "80"}).invoke(APP, asked).stdout


def test_measuring_is_printed_beside_ideal_and_engine() -> None:
    pytest.importorskip("torch")
    found = load("--engine", "vllm", "--model", "v4-flash", "--ctx", "8K", "--measure", "--device", "cpu")
    assert found["ideal_bytes"] < found["engine_bytes"]
    assert found["measured_bytes"] == pytest.approx(found["engine_bytes"], rel=0.1)


def test_more_requests_decode_at_once_than_admission_counts() -> None:
    flags = ("--engine", "vllm", "--model", "v4-flash", "--ctx", "128K", "--num-blocks", "100000")
    admitted, held = 512 + 2 * 131 + 2051 + 1041, 512 + 9 + 17  # full, two windows, c4 state, c128 state
    fits = 1 + (100_000 - admitted) // held
    assert f"\ndecoding, {fits} fit: each gives back the charge for tokens in flight\n" in text(*flags)
    assert f"\ndecoding, {2 * fits} fit, {fits} on each of 2 dp ranks: each" in text(*flags, "--dp", "2")
    found = load(*flags)
    assert (found["decoding_requests"], found["in_flight_tokens"]) == (fits, 8192)
    assert "decoding," not in text(*flags[:4], "--ctx", "128K", "--num-blocks", "4000")


def test_figures_of_pipeline_stages_say_that_they_are_over_all_of_them() -> None:
    found = text("--engine", "vllm", "--model", "v4-flash", "--ctx", "128K", "--gpu", "2xH200", "--pp", "2")
    assert "B) over 2 pipeline stages, " in found
    assert "split over dp 1, its layers split over pp 2\n" in found


def test_a_model_that_takes_more_than_its_baseline_is_not_called_less() -> None:
    assert "for v4-flash (main bf16, indexer bf16): 12.4× more" in text(
        "--model", "v3.2", "--baseline", "v4-flash", "--ctx", "128K"
    )


def test_what_the_number_of_requests_leaves_out_stands_below_it() -> None:
    flags = ("--engine", "vllm", "--model", "v4-flash", "--gpu", "H200", "--ctx", "128K")
    sentence = "\nnot counted: weights, activations, CUDA graphs; less fits beside them\n"
    assert "34 requests of 128K fit" + sentence in text(*flags)
    assert "not counted" not in text(*flags, "--weights", "60GiB", "--activations", "2GiB", "--cuda-graphs", "1GiB")


def test_a_simulation_prints_hits_peaks_and_pools() -> None:
    found = text("--simulate", "chat", "--model", "v4-flash", "--requests", "300", "--available", "8GiB")
    for line in ("Replay of 300 requests (chat): v4-flash, vLLM (packed)", "prefix hit rate", "c128_state",
                 "one pool per kind, split as one longest request needs them"):  # fmt: skip
        assert line in found
    data = load("--simulate", "chat", "--model", "v4-flash", "--requests", "300", "--num-blocks", "8000")
    assert data["with_retention"]["requests"] == 300
    assert 0 <= data["without_retention"]["hit_rate"] <= 1


def test_a_simulation_in_which_nothing_fits_says_that_and_no_more_about_pools() -> None:
    found = text("--simulate", "agents", "--requests", "20", "--available", "1GiB")
    assert "no request of this trace fits in the pool" in found
    assert "runs out first" not in found


def test_a_log_is_compared() -> None:
    log = str(DATA / "server_logs" / "vllm_0.27_flash_gb10.log")
    found = text("--from-log", log)
    assert "every figure agrees within the printed rounding" in found
    assert load("--from-log", log)["findings"][0]["agrees"] is True


@pytest.mark.parametrize("extra", [[], ["--engine", "vllm", "--available", "40GiB"], ["--baseline", "none"]])
def test_a_plot_is_written(tmp_path: Path, extra: list[str]) -> None:
    path = tmp_path / "kv.png"
    call("--ctx", "64K", "--plot", str(path), *extra)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 20_000


def test_it_runs_where_torch_cannot_be_imported() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['dsv4bench', *sys.argv[1:]]\n"
    code += "from dsv4bench.cli.main import main; main()"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    arguments = ["memory", "--engine", "vllm", "--ctx", "8K"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--measure"], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: --measure needs torch: pip install '.[torch]' in a checkout of dsv4bench\n",
    )
