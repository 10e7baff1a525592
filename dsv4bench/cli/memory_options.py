"""The options of ``dsv4bench memory``, as annotated types."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4bench.memory.engines import ENGINES
from dsv4bench.report.memory_tables import VIEWS

FORMATS = ("table", "json", "csv", "md")
_SERVING, _CAPACITY, _SGLANG, _LLAMA, _MORE = (
    "Serving", "Capacity", "SGLang", "llama.cpp", "Measure, simulate, compare",
)  # fmt: skip


def _option(help: str, *names: str, panel: str | None = None, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


Size = str
Model = Annotated[
    str | None, _option("Preset, published name, or path to a config.json. Default: v4-pro.", "--model", "-m")
]
Ctx = Annotated[Size | None, _option("Tokens of the request: 128K, 1M. Default: the model's longest.", "--ctx", "-c")]
Baseline = Annotated[str, _option("Model to compare with, or none. Default: v3.2.", "--baseline")]
EngineName = Annotated[
    str, _option(f"ideal (default), or an engine: {', '.join(ENGINES)}; vllm@0.31 names a version.", "--engine", "-e")
]
Main = Annotated[
    str | None, _option("Main and window entries: bf16 (default for ideal) or fp8 (for engines).", "--main")
]
Indexer = Annotated[
    str | None,
    _option("Indexer entries: bf16, fp8 or fp4. Default: as --main for ideal, fp8 for engines.", "--indexer"),
]
Layout = Annotated[
    str | None, _option("vLLM's kernel layout: flashmla (default) or flashinfer.", "--layout", panel=_SERVING)
]
By = Annotated[str | None, _option(f"Rows: {', '.join(VIEWS)}. Default: kind.", "--by")]
Format = Annotated[str, _option(f"{', '.join(FORMATS)}. Default: table.", "--format", "-f")]
Explain = Annotated[bool, typer.Option("--explain", help="Print each term with its numbers.")]
Plot = Annotated[Path | None, _option("Write a PNG: bytes by layer, over context, and concurrency.", "--plot")]
MaxLen = Annotated[
    Size | None,
    _option("Longest request the engine is started for. Default: --ctx.", "--max-model-len", panel=_SERVING),
]
Batched = Annotated[
    Size | None, _option("Tokens of a scheduler step. Default: 8192.", "--max-num-batched-tokens", panel=_SERVING)
]
Flight = Annotated[
    Size | None,
    _option(
        "Tokens in flight. Default: by the step, --async-scheduling and --pp.", "--in-flight-tokens", panel=_SERVING
    ),
]
Async = Annotated[
    bool, typer.Option("--async-scheduling", help="Two steps in flight. Default: one.", rich_help_panel=_SERVING)
]
Mtp = Annotated[
    int,
    _option("Draft tokens a step; above 0 one MTP layer joins the window groups. Default: 0.", "--mtp", panel=_SERVING),
]
Tp = Annotated[int, _option("Tensor parallel size; KV is replicated over it. Default: 1.", "--tp", panel=_SERVING)]
Dp = Annotated[int, _option("Data parallel size; KV is split over it. Default: 1.", "--dp", panel=_SERVING)]
Pp = Annotated[int, _option("Pipeline parallel size; layers are split over it. Default: 1.", "--pp", panel=_SERVING)]
Dcp = Annotated[
    int,
    _option("Decode context parallel size; compressed entries are split over it. Default: 1.", "--dcp", panel=_SERVING),
]
Available = Annotated[
    Size | None,
    _option("Memory for the cache per GPU, as an engine logs it: 47.43GiB.", "--available", panel=_CAPACITY),
]
NumBlocks = Annotated[int | None, _option("Blocks of the pool, as vLLM logs them.", "--num-blocks", panel=_CAPACITY)]
Gpu = Annotated[str | None, _option("GPUs instead of --available: 8xH200.", "--gpu", panel=_CAPACITY)]
Weights = Annotated[
    Size | None, _option("Weights per GPU: 19.8GiB. Default: not counted.", "--weights", panel=_CAPACITY)
]
Activations = Annotated[
    Size | None, _option("Peak activations per GPU: 2GiB. Default: not counted.", "--activations", panel=_CAPACITY)
]
Graphs = Annotated[
    Size | None, _option("CUDA-graph pool per GPU: 1GiB. Default: not counted.", "--cuda-graphs", panel=_CAPACITY)
]
Utilization = Annotated[
    float,
    _option(
        "Share of the GPU the engine may use. Default: 0.9.",
        "--utilization",
        "--gpu-memory-utilization",
        panel=_CAPACITY,
    ),
]
Logits = Annotated[
    Size | None,
    _option("What indexer logits are chunked to. Default: 512MiB for vLLM.", "--logits-budget", panel=_CAPACITY),
]
Swa = Annotated[
    float | None,
    _option("Window tokens per full token. Default: 0.1.", "--swa-ratio", "--swa-full-tokens-ratio", panel=_SGLANG),
]
State = Annotated[str | None, _option("Compressor state: fp32 (default) or bf16.", "--state", panel=_SGLANG)]
C4 = Annotated[
    int | None,
    _option("c4 state rows per 128 window tokens. Default: the version's.", "--c4-state-rows", panel=_SGLANG),
]
C128 = Annotated[
    int | None,
    _option(
        "c128 state rows per window token; 0 is request-scoped. Default: the version's.",
        "--c128-state-rows",
        panel=_SGLANG,
    ),
]
Fixed = Annotated[
    Size | None,
    _option("Request-scoped state taken off the pool, as logged. Default: none.", "--fixed-state", panel=_SGLANG),
]
CacheType = Annotated[str | None, _option("Type of cache values: f16 (default) or q8_0.", "--cache-type", panel=_LLAMA)]
Cells = Annotated[
    int | None, _option("Cells of the window cache. Default: 768 for a window of 128.", "--window-cells", panel=_LLAMA)
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Allocate the blocks and ask the device.", rich_help_panel=_MORE)
]
Device = Annotated[
    str, _option("Where --measure allocates: cpu or cuda. Default: cuda if there is one.", "--device", panel=_MORE)
]
Simulate = Annotated[
    str | None, _option("Replay a JSONL trace, or a built-in mix (chat, agents, documents).", "--simulate", panel=_MORE)
]
Requests = Annotated[Size, _option("Requests of a built-in mix. Default: 10k.", "--requests", panel=_MORE)]
Rate = Annotated[
    float | None,
    _option("Requests per second of a mix. Default: chat 5, agents 1, documents 0.2.", "--rate", panel=_MORE),
]
Prefill = Annotated[
    Size, _option("Prompt tokens per second of the simulated server. Default: 20k.", "--prefill-rate", panel=_MORE)
]
Decode = Annotated[
    float, _option("Output tokens per second of each request. Default: 50.", "--decode-rate", panel=_MORE)
]
Retention = Annotated[
    Size,
    _option(
        "Retention interval in tokens, a multiple of 256; 0 keeps each prompt's last boundary. Default: 0.",
        "--retention",
        panel=_MORE,
    ),
]
FromLog = Annotated[
    Path | None, _option("Compare a vLLM or SGLang server's log with the arithmetic.", "--from-log", panel=_MORE)
]
