"""``dsv4bench memory``: KV memory as the design needs it, as an engine reserves it, as a device gives it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dsv4bench.errors import UserError
from dsv4bench.memory.account import Account, account, to_json
from dsv4bench.memory.budget import VLLM_LOGITS_BUDGET, Budget, Given, given_budget, gpu_budget
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import ENGINES, Engine, engine_named
from dsv4bench.memory.ideal import INDEXER_PRECISIONS
from dsv4bench.model.config import load_shape
from dsv4bench.model.gpus import parse_gpus
from dsv4bench.model.shape import ModelShape
from dsv4bench.report.memory_tables import VIEWS, memory_sections
from dsv4bench.report.sections import Section, print_sections, to_csv, to_markdown
from dsv4bench.scenario.sizes import parse_bytes, parse_tokens

FORMATS = ("table", "json", "csv", "md")
_SERVING, _CAPACITY, _SGLANG, _LLAMA, _MORE = (
    "Serving", "Capacity", "SGLang", "llama.cpp", "Measure, simulate, compare",
)  # fmt: skip


def _option(help: str, *names: str, panel: str | None = None, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


Size = str
_Model = Annotated[str, _option("Preset, or path to a config.json. Default: v4-pro.", "--model", "-m")]
_Ctx = Annotated[Size | None, _option("Tokens of the request: 128K, 1M. Default: the model's longest.", "--ctx", "-c")]
_Baseline = Annotated[str, _option("Model to compare with, or none. Default: v3.2.", "--baseline")]
_Engine = Annotated[
    str, _option(f"ideal (default), or an engine: {', '.join(ENGINES)}; vllm@0.31 names a version.", "--engine", "-e")
]
_Main = Annotated[
    str | None, _option("Main and window entries: bf16 (default for ideal) or fp8 (for engines).", "--main")
]
_Indexer = Annotated[str | None, _option("Indexer entries: bf16, fp8 or fp4. Default: as --main.", "--indexer")]
_Layout = Annotated[
    str | None, _option("vLLM's kernel layout: flashmla (default) or flashinfer.", "--layout", panel=_SERVING)
]
_By = Annotated[str | None, _option(f"Rows: {', '.join(VIEWS)}. Default: kind.", "--by")]
_Format = Annotated[str, _option(f"{', '.join(FORMATS)}. Default: table.", "--format", "-f")]
_Explain = Annotated[bool, typer.Option("--explain", help="Print each term with its numbers.")]
_Plot = Annotated[Path | None, _option("Write a PNG: bytes by layer, over context, and concurrency.", "--plot")]
_MaxLen = Annotated[
    Size | None,
    _option("Longest request the engine is started for. Default: --ctx.", "--max-model-len", panel=_SERVING),
]
_Batched = Annotated[
    Size | None, _option("Tokens of a scheduler step. Default: 8192.", "--max-num-batched-tokens", panel=_SERVING)
]
_Flight = Annotated[Size | None, _option("Tokens in flight, if known otherwise.", "--in-flight-tokens", panel=_SERVING)]
_Async = Annotated[bool, typer.Option("--async-scheduling", help="Two steps in flight.", rich_help_panel=_SERVING)]
_Mtp = Annotated[int, _option("Draft tokens; above 0 one MTP layer joins the window groups.", "--mtp", panel=_SERVING)]
_Tp = Annotated[int, _option("Tensor parallel size; KV is replicated over it.", "--tp", panel=_SERVING)]
_Dp = Annotated[int, _option("Data parallel size; KV is split over it.", "--dp", panel=_SERVING)]
_Pp = Annotated[int, _option("Pipeline parallel size; layers are split over it.", "--pp", panel=_SERVING)]
_Dcp = Annotated[int, _option("Decode context parallel size.", "--dcp", panel=_SERVING)]
_Available = Annotated[
    Size | None,
    _option("Memory for the cache per GPU, as an engine logs it: 47.43GiB.", "--available", panel=_CAPACITY),
]
_NumBlocks = Annotated[int | None, _option("Blocks of the pool, as vLLM logs them.", "--num-blocks", panel=_CAPACITY)]
_Gpu = Annotated[str | None, _option("GPUs instead: 8xH200.", "--gpu", panel=_CAPACITY)]
_Weights = Annotated[Size | None, _option("Weights per GPU: 19.8GiB.", "--weights", panel=_CAPACITY)]
_Activations = Annotated[Size | None, _option("Peak activations per GPU.", "--activations", panel=_CAPACITY)]
_Graphs = Annotated[Size | None, _option("CUDA-graph pool per GPU.", "--cuda-graphs", panel=_CAPACITY)]
_Utilization = Annotated[
    float, _option("Share of the GPU the engine may use. Default: 0.9.", "--utilization", panel=_CAPACITY)
]
_Logits = Annotated[
    Size | None,
    _option("What indexer logits are chunked to. Default: 512MiB for vLLM.", "--logits-budget", panel=_CAPACITY),
]
_Swa = Annotated[float | None, _option("swa_full_tokens_ratio. Default: 0.1.", "--swa-ratio", panel=_SGLANG)]
_State = Annotated[str | None, _option("Compressor state: fp32 (default) or bf16.", "--state", panel=_SGLANG)]
_C4 = Annotated[int | None, _option("c4 state rows per 128 window tokens.", "--c4-state-rows", panel=_SGLANG)]
_C128 = Annotated[
    int | None, _option("c128 state rows per window token; 0 is request-scoped.", "--c128-state-rows", panel=_SGLANG)
]
_Fixed = Annotated[
    Size | None, _option("Request-scoped state taken off the pool, as logged.", "--fixed-state", panel=_SGLANG)
]
_CacheType = Annotated[str | None, _option("f16 (default) or q8_0.", "--cache-type", panel=_LLAMA)]
_Cells = Annotated[int | None, _option("Cells of the window cache. Default: 768.", "--window-cells", panel=_LLAMA)]
_Measure = Annotated[
    bool, typer.Option("--measure", help="Allocate the blocks and ask the device.", rich_help_panel=_MORE)
]
_Device = Annotated[
    str, _option("Where --measure allocates: cpu or cuda. Default: cuda if there is one.", "--device", panel=_MORE)
]
_Simulate = Annotated[
    str | None, _option("Replay a JSONL trace, or a built-in mix (chat, agents, documents).", "--simulate", panel=_MORE)
]
_Requests = Annotated[Size, _option("Requests of a built-in mix. Default: 10k.", "--requests", panel=_MORE)]
_FromLog = Annotated[
    Path | None, _option("Compare a vLLM or SGLang server's log with the arithmetic.", "--from-log", panel=_MORE)
]


def memory(
    model: _Model = "v4-pro", ctx: _Ctx = None, baseline: _Baseline = "v3.2", engine: _Engine = "ideal",
    main: _Main = None, indexer: _Indexer = None, by: _By = None, format: _Format = "table",
    explain: _Explain = False, plot: _Plot = None,
    layout: _Layout = None, max_model_len: _MaxLen = None, max_num_batched_tokens: _Batched = None,
    in_flight_tokens: _Flight = None, async_scheduling: _Async = False, mtp: _Mtp = 0,
    tp: _Tp = 1, dp: _Dp = 1, pp: _Pp = 1, dcp: _Dcp = 1,
    available: _Available = None, num_blocks: _NumBlocks = None, gpu: _Gpu = None, weights: _Weights = None,
    activations: _Activations = None, cuda_graphs: _Graphs = None, utilization: _Utilization = 0.9,
    logits_budget: _Logits = None,
    swa_ratio: _Swa = None, state: _State = None, c4_state_rows: _C4 = None, c128_state_rows: _C128 = None,
    fixed_state: _Fixed = None, cache_type: _CacheType = None, window_cells: _Cells = None,
    measure: _Measure = False, device: _Device = "", simulate: _Simulate = None, requests: _Requests = "10k",
    from_log: _FromLog = None,
) -> None:  # fmt: skip
    """Account the KV cache: ideal, as an engine reserves it, as a device gives it; and what fits.

    Examples: dsv4bench memory --ctx 1M · dsv4bench memory --engine vllm@0.28 --model v4-flash --available 26.3GiB
    """
    _one_of("--format", format, FORMATS)
    if from_log is not None:
        _from_log(from_log, format)
        return
    _one_of("--by", by or "kind", VIEWS)
    shape = load_shape(model)
    allocator = _engine(engine, by)
    given = {
        "layout": layout, "max_num_batched_tokens": _tokens(max_num_batched_tokens, "--max-num-batched-tokens"),
        "in_flight_tokens": _tokens(in_flight_tokens, "--in-flight-tokens"),
        "async_scheduling": async_scheduling or None, "mtp": mtp or None, "tp": _above(tp, 1), "dp": _above(dp, 1),
        "pp": _above(pp, 1), "dcp": _above(dcp, 1), "swa_ratio": swa_ratio, "state": state,
        "c4_state_rows": c4_state_rows, "c128_state_rows": c128_state_rows,
        "fixed_state_bytes": _bytes(fixed_state, "--fixed-state"), "cache_type": cache_type,
        "window_cells": window_cells,
    }  # fmt: skip
    fields = {name: value for name, value in given.items() if value is not None}
    _refuse_unread(fields, allocator)
    context = _context(ctx, max_model_len, shape)
    length = _tokens(max_model_len, "--max-model-len") or context
    precision = _precision(shape, main, indexer, allocator)
    deployment = Deployment(shape=shape, max_model_len=length, **precision, **fields)
    sizes = Given(
        _bytes(weights, "--weights"), _bytes(activations, "--activations"), _bytes(cuda_graphs, "--cuda-graphs")
    )
    budget = _budget(deployment, allocator, available, gpu, utilization, sizes, logits_budget)
    if simulate is not None:
        _simulate(deployment, allocator, simulate, requests, budget, num_blocks, format)
        return
    result = account(
        deployment,
        allocator,
        context,
        baseline=_baseline(baseline, deployment, precision, fields),
        budget=budget,
        num_blocks=num_blocks,
        measured_bytes=_measure(deployment, allocator, context, device) if measure else None,
    )
    _print(result, by or "kind", format, explain=explain, defaulted=main is None and cache_type is None)
    if plot is not None:
        _plot(result, plot)


# --- inputs ----------------------------------------------------------------------------------------------------------
def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{flag} must be one of {', '.join(known)}, got {value!r}")


def _tokens(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_tokens(text, flag)


def _bytes(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_bytes(text, flag)


def _above(value: int, default: int) -> int | None:
    return None if value == default else value


def _engine(text: str, by: str | None) -> Engine | None:
    """The engine asked for; pages are vLLM's where none was."""
    if text != "ideal":
        return engine_named(text)
    return engine_named("vllm") if by == "page" else None


def _refuse_unread(fields: dict[str, Any], engine: Engine | None) -> None:
    """Refuse flags that the engine would silently ignore."""
    flags = {"fixed_state_bytes": "--fixed-state"}
    for name in fields:
        if name == "mtp" or (engine is not None and name in engine.options):
            continue
        readers = [other for other in ENGINES if name in engine_named(other).options]
        flag = flags.get(name, f"--{name.replace('_', '-')}")
        raise UserError(
            f"{flag} means nothing to {engine.title if engine else 'ideal'}; it is for {', '.join(readers)}"
        )


def _context(ctx: str | None, max_model_len: str | None, shape: ModelShape) -> int:
    if ctx is not None:
        return parse_tokens(ctx, "--ctx")
    return _tokens(max_model_len, "--max-model-len") or shape.max_positions


def _precision(shape: ModelShape, main: str | None, indexer: str | None, engine: Engine | None) -> dict[str, str]:
    """Main defaults to bf16 for ideal and fp8 for an engine; the indexer follows, and is never bf16 in an engine."""
    chosen = main or ("fp8" if engine else "bf16")
    return {"main": chosen, "indexer": indexer or ("fp8" if engine else chosen)}


def _baseline(
    name: str, deployment: Deployment, precision: dict[str, str], fields: dict[str, Any]
) -> Deployment | None:
    if name in ("none", deployment.shape.name):
        return None
    shape = load_shape(name)
    if precision["indexer"] not in INDEXER_PRECISIONS[shape.family]:
        precision = precision | {"indexer": "fp8"}
    kept = {k: v for k, v in fields.items() if k != "mtp" or shape.mtp_layers}
    return Deployment(shape=shape, max_model_len=deployment.max_model_len, **precision, **kept)


def _budget(
    deployment: Deployment, engine: Engine | None, available: str | None, gpu: str | None, utilization: float,
    sizes: Given, logits: str | None,
) -> Budget | None:  # fmt: skip
    if available is not None and gpu is not None:
        raise UserError("give --available or --gpu, not both")
    if available is not None:
        if sizes != Given():
            raise UserError("--weights, --activations and --cuda-graphs go with --gpu; --available is what they leave")
        return given_budget(parse_bytes(available, "--available"), deployment)
    if gpu is None:
        if sizes != Given():
            raise UserError("--weights, --activations and --cuda-graphs need --gpu, such as --gpu 8xH200")
        return None
    count, known = parse_gpus(gpu)
    chunked = _bytes(logits, "--logits-budget")
    if chunked is None and engine is not None and engine.title.startswith("vLLM"):
        chunked = VLLM_LOGITS_BUDGET
    return gpu_budget(deployment, known, count, utilization, sizes, chunked)


# --- outputs ---------------------------------------------------------------------------------------------------------
def _print(result: Account, by: str, format: str, *, explain: bool, defaulted: bool) -> None:
    if format == "json":
        extra = {"terms": _terms(result)} if explain else {}
        typer.echo(json.dumps(to_json(result) | extra, indent=2))
        return
    _print_sections(memory_sections(result, by, explain=explain, defaulted=defaulted), format)


def _terms(result: Account) -> list[str]:
    terms = list(result.view.ideal.terms)
    terms += result.view.engine.terms if result.view.engine else ()
    return terms + list(result.capacity.terms if result.capacity else ())


def _print_sections(sections: list[Section], format: str) -> None:
    if format == "csv":
        typer.echo(to_csv(sections[0]), nl=False)
    elif format == "md":
        typer.echo(to_markdown(sections), nl=False)
    else:
        print_sections(sections, Console())


def _plot(result: Account, path: Path) -> None:
    from dsv4bench.report.memory_plots import plot_memory

    typer.echo(str(plot_memory(result, path)), err=True)


def _measure(deployment: Deployment, engine: Engine | None, context: int, device: str) -> int:
    from dsv4bench.memory.engines.vllm import Vllm

    if not isinstance(engine, Vllm):
        raise UserError("--measure allocates blocks: give --engine vllm")
    try:
        from dsv4bench.stack.measure import measure_request
    except ImportError as error:
        raise UserError("--measure needs torch: pip install 'dsv4bench[torch]'") from error
    return measure_request(engine.layout(deployment), context, deployment.decode_tokens, device or None)


def _simulate(
    deployment: Deployment, engine: Engine | None, source: str, requests: str, budget: Budget | None,
    num_blocks: int | None, format: str,
) -> None:  # fmt: skip
    raise UserError("not here yet")


def _from_log(path: Path, format: str) -> None:
    raise UserError("not here yet")
