from pathlib import Path

import pytest

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import engine_named
from dsv4bench.memory.reported import Finding, compare_log
from dsv4bench.memory.serverlog import read_log
from dsv4bench.model.shape import V4_FLASH, V4_PRO

LOGS = Path(__file__).parents[2] / "data" / "server_logs"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("vllm_0.27_flash_gb10", "vLLM 0.27.1 (packed), v4-flash, flashmla, indexer fp8, max_model_len 1,048,576"),
        ("vllm_0.26_flash_h20_mtp", "vLLM 0.26.0 (bucketed), v4-flash, flashmla, indexer fp8, max_model_len 912,128"),
        (
            "sglang_flash_h20_mtp",
            "SGLang, v4-flash, swa ratio 0.1, state fp32, c4 rows 8/128, c128 rows 1, 1 draft layers",
        ),
        (
            "sglang_flash_h100",
            "SGLang, v4-flash, swa ratio 0.1, state bf16, c4 rows 8/128, c128 rows 0, 0 draft layers",
        ),
    ],
)
def test_the_configuration_of_a_log_is_rebuilt_and_every_figure_agrees(name: str, title: str) -> None:
    comparison = compare_log(read_log(LOGS / f"{name}.log"))
    assert comparison.title == title
    assert comparison.findings
    assert all(finding.agrees for finding in comparison.findings)
    assert comparison.lines[-1] == "every figure agrees within the printed rounding"


def test_what_a_log_does_not_say_is_inferred_and_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "model='deepseek-ai/DeepSeek-V4-Flash'\nAvailable KV cache memory: 26.30 GiB\n"
        "GPU KV cache size: 2,740,813 tokens\nMaximum concurrency for 1,048,576 tokens per request: 2.61x\n"
    )
    comparison = compare_log(read_log(path))
    assert all(finding.agrees for finding in comparison.findings)
    assert "inferred: vLLM generation packed: the log names no version" in comparison.lines
    assert any(line.startswith("inferred: max_num_batched_tokens") for line in comparison.lines)


def test_a_value_that_reproduces_nothing_is_not_called_inferred(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    text = (LOGS / "vllm_0.26_flash_h20_mtp.log").read_text()
    path.write_text(text.replace("1,009,661", "1,209,661").replace("1.11x", "1.33x"))
    comparison = compare_log(read_log(path))
    assert not all(finding.agrees for finding in comparison.findings)
    assert not any(line.startswith("inferred") for line in comparison.lines)
    assert any(line.startswith("nearest of those tried, not inferred: max_num_b") for line in comparison.lines)


def test_sglang_bytes_that_nothing_gives_infer_nothing(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text((LOGS / "sglang_flash_h100.log").read_text().replace("7033.45", "7133.45"))
    lines = compare_log(read_log(path)).lines
    assert lines[0].startswith("nearest of those tried, not inferred from the bytes per full token: state precision")


def test_a_figure_that_no_configuration_gives_is_reported_as_not_explained(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "LLM engine (v0.28.1) model='DeepSeek-V4-Flash' max_num_batched_tokens=8192\n"
        "Available KV cache memory: 26.30 GiB\nGPU KV cache size: 9,740,813 tokens\n"
        "Maximum concurrency for 1,048,576 tokens per request: 9.29x\n"
    )
    comparison = compare_log(read_log(path))
    assert not any(finding.agrees for finding in comparison.findings)
    assert comparison.lines[-1].startswith("not explained: KV cache tokens +")


def test_figures_of_another_generation_are_recognised(tmp_path: Path) -> None:
    text = (LOGS / "vllm_0.26_flash_h20_mtp.log").read_text().replace("v0.26.0", "v0.27.0")
    path = tmp_path / "server.log"
    path.write_text(text)
    lines = compare_log(read_log(path)).lines
    assert "the figures are those of the bucketed generation, not of vLLM 0.27.0" in lines


def test_an_mtp_layer_that_the_log_does_not_name_is_inferred(tmp_path: Path) -> None:
    text = (LOGS / "vllm_0.26_flash_h20_mtp.log").read_text().replace("num_spec_tokens=1", "")
    path = tmp_path / "server.log"
    path.write_text(text.replace("INFO", "max_num_batched_tokens=8192 INFO", 1))
    comparison = compare_log(read_log(path))
    assert "inferred: an MTP layer: the log does not say" in comparison.lines
    assert all(finding.agrees for finding in comparison.findings)


def test_a_number_of_blocks_stands_in_for_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "vLLM API server version 0.28.0 model='v4-flash' max_num_batched_tokens=8448 async_scheduling=True\n"
        "num_gpu_blocks is: 13270\nGPU KV cache size: 63,859 tokens\n"
        "Maximum concurrency for 33,792 tokens per request: 1.89x\n"
    )
    findings = compare_log(read_log(path)).findings
    assert (findings[0].low, findings[0].high) == (63_859, 63_859)
    assert all(finding.agrees for finding in findings)


def test_the_caller_may_name_the_model(tmp_path: Path) -> None:
    log = read_log(LOGS / "vllm_0.27_flash_gb10.log")
    assert compare_log(log, V4_FLASH).title.startswith("vLLM 0.27.1 (packed), v4-flash")
    assert not all(finding.agrees for finding in compare_log(log, V4_PRO).findings)


def _log_of(plan: Deployment, available: str, *lines: str) -> str:
    """What vLLM 0.28 would log of a deployment, by this package's own arithmetic."""
    got = engine_named("vllm@0.28").capacity(plan, int(float(available) * 2**30))
    return "\n".join([
        "LLM engine (v0.28.0) model='v4-pro' max_num_batched_tokens=8192", *lines,
        f"Available KV cache memory: {available} GiB", f"GPU KV cache size: {got.kv_cache_tokens:,} tokens",
        f"Maximum concurrency for {plan.max_model_len:,} tokens per request: {got.concurrency:.2f}x",
    ])  # fmt: skip


def test_pipeline_stages_are_read_from_a_log(tmp_path: Path) -> None:
    path, plan = tmp_path / "server.log", Deployment(V4_PRO, pp=2)
    path.write_text(_log_of(plan, "50.00", "tensor_parallel_size=4, pipeline_parallel_size=2"))
    comparison = compare_log(read_log(path))
    assert comparison.title.endswith("2 pipeline stages")
    assert all(finding.agrees for finding in comparison.findings)
    path.write_text(path.read_text().replace("pipeline_parallel_size=2", ""))
    assert not all(finding.agrees for finding in compare_log(read_log(path)).findings)


def test_a_log_that_says_it_does_not_schedule_asynchronously_is_believed(tmp_path: Path) -> None:
    path, twice = tmp_path / "server.log", Deployment(V4_PRO, async_scheduling=True)
    path.write_text(_log_of(twice, "50.00"))
    assert "inferred: async scheduling: the log does not say" in compare_log(read_log(path)).lines
    path.write_text(_log_of(twice, "50.00", "Asynchronous scheduling is disabled."))
    comparison = compare_log(read_log(path))
    assert "tokens in flight: 8,192" in comparison.lines
    assert not any(finding.agrees for finding in comparison.findings)


def test_numbers_that_are_none_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(_log_of(Deployment(V4_PRO), "50.00").replace("50.00", "5.0.0"))
    with pytest.raises(UserError, match="neither 'Available KV cache memory' nor a number of GPU blocks"):
        compare_log(read_log(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "no capacity line found; looked for vLLM's 'GPU KV cache size'"),
        ("Available KV cache memory: 1.00 GiB\n", "the log names no model; known are v4-pro"),
        ("model='llama' Available KV cache memory: 1.00 GiB\n", "names the model 'llama'"),
        ("model='v4-pro' Available KV cache memory: 1.00 GiB\n", "the line 'Maximum concurrency for"),
        (
            "model='v4-pro' Available KV cache memory: 1.00 GiB\nMaximum concurrency for 0 tokens per request: 1.00x\n",
            "'Maximum concurrency for 0 tokens per request' says no length",
        ),
        (
            "model='v4-pro' GPU KV cache size: 9 tokens\nMaximum concurrency for 8 tokens per request: 1.00x\n",
            "neither 'Available KV cache memory' nor a number of GPU blocks",
        ),
    ],
)
def test_a_log_without_what_is_needed_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        compare_log(read_log(path))


def test_an_unreadable_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_log(tmp_path / "none.log")


def test_a_difference_is_counted_from_the_nearer_end_of_the_range() -> None:
    assert Finding("x", 110, 90, 100).difference == pytest.approx(0.1)
    assert Finding("x", 81, 90, 100).difference == pytest.approx(-0.1)
    assert Finding("x", 2.61, 2.6041, 2.6049, 2).agrees is False
    assert Finding("x", 2.61, 2.6051, 2.6052, 2).agrees is True
