"""``dsv4bench memory``: KV memory as the design needs it, as an engine reserves it, as a device gives it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from dsv4bench.cli import memory_options as opt
from dsv4bench.cli.flags import given_flags, refuse_beside
from dsv4bench.cli.memory_refusals import (
    refuse_dp_within_tp,
    refuse_of_other_modes,
    refuse_uncounted,
    refuse_unread,
)
from dsv4bench.errors import UserError
from dsv4bench.memory.account import Account, account, to_json
from dsv4bench.memory.budget import (
    VLLM_LOGITS_BUDGET,
    Budget,
    Given,
    attention_workspaces,
    given_budget,
    gpu_budget,
)  # fmt: skip
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import Engine, engine_named
from dsv4bench.memory.engines.llamacpp import LlamaCpp
from dsv4bench.memory.engines.sglang import Sglang
from dsv4bench.memory.engines.vllm import Vllm
from dsv4bench.memory.ideal import INDEXER_PRECISIONS
from dsv4bench.memory.page import BLOCK_TOKENS
from dsv4bench.memory.rates import Rates
from dsv4bench.model.config import load_shape
from dsv4bench.model.gpus import parse_gpus
from dsv4bench.model.shape import ModelShape
from dsv4bench.report.memory_plots import check_target, plot_memory
from dsv4bench.report.memory_tables import VIEWS, memory_sections
from dsv4bench.report.sections import Section, print_sections, to_csv, to_markdown
from dsv4bench.scenario.sizes import LARGEST, parse_bytes, parse_tokens


def memory(
    call: typer.Context,
    model: opt.Model = None, ctx: opt.Ctx = None, baseline: opt.Baseline = "v3.2", engine: opt.EngineName = "ideal",
    main: opt.Main = None, indexer: opt.Indexer = None, by: opt.By = None, format: opt.Format = "table",
    explain: opt.Explain = False, plot: opt.Plot = None,
    layout: opt.Layout = None, max_model_len: opt.MaxLen = None, max_num_batched_tokens: opt.Batched = None,
    in_flight_tokens: opt.Flight = None, async_scheduling: opt.Async = False, mtp: opt.Mtp = 0,
    tp: opt.Tp = 1, dp: opt.Dp = 1, pp: opt.Pp = 1, dcp: opt.Dcp = 1,
    available: opt.Available = None, num_blocks: opt.NumBlocks = None, gpu: opt.Gpu = None, weights: opt.Weights = None,
    activations: opt.Activations = None, cuda_graphs: opt.Graphs = None, utilization: opt.Utilization = 0.9,
    logits_budget: opt.Logits = None,
    swa_ratio: opt.Swa = None, state: opt.State = None, c4_state_rows: opt.C4 = None, c128_state_rows: opt.C128 = None,
    fixed_state: opt.Fixed = None, cache_type: opt.CacheType = None, window_cells: opt.Cells = None,
    measure: opt.Measure = False, device: opt.Device = "", simulate: opt.Simulate = None,
    requests: opt.Requests = "10k", rate: opt.Rate = None, prefill_rate: opt.Prefill = "20k",
    decode_rate: opt.Decode = 50.0, retention: opt.Retention = "0",
    from_log: opt.FromLog = None,
) -> None:  # fmt: skip
    """Account the KV cache: ideal, as an engine reserves it, as a device gives it; and what fits.

    Examples: dsv4bench memory --ctx 1M · dsv4bench memory --engine vllm@0.28 --model v4-flash --available 26.3GiB
    """
    _one_of("--format", format, opt.FORMATS)
    asked = given_flags(call)
    if from_log is not None:
        refuse_beside("--from-log", asked, asked.keys() - {"from_log", "model", "format"})
        _from_log(from_log, None if model is None else load_shape(model), format)
        return
    refuse_of_other_modes(asked, simulate, format)
    if plot is not None:
        check_target(plot)
    _one_of("--by", by or "kind", VIEWS)
    shape = load_shape("v4-pro" if model is None else model)
    allocator = _engine("vllm" if engine == "ideal" and simulate else engine, by)
    given = {
        "layout": layout, "max_num_batched_tokens": _tokens(max_num_batched_tokens, "--max-num-batched-tokens"),
        "in_flight_tokens": _tokens(in_flight_tokens, "--in-flight-tokens"),
        "async_scheduling": async_scheduling or None, "mtp": mtp or None, "tp": _above(tp, 1), "dp": _above(dp, 1),
        "pp": _above(pp, 1), "dcp": _above(dcp, 1), "swa_ratio": swa_ratio, "state": state,
        "c4_state_rows": c4_state_rows, "c128_state_rows": c128_state_rows,
        "fixed_state_bytes": _bytes(fixed_state, "--fixed-state"), "cache_type": cache_type,
        "window_cells": window_cells,
    }  # fmt: skip
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    refuse_unread(fields | {"main": main, "indexer": indexer}, allocator)
    shape.shard(tp)  # refused where heads do not divide
    longest = _tokens(max_model_len, "--max-model-len")
    context = _context(ctx, longest, shape)
    refuse_uncounted(asked, allocator)
    length = context if longest is None else longest
    precision = _precision(main, indexer, allocator)
    deployment = Deployment(shape, *precision, max_model_len=length, **fields)
    sizes = Given(
        _bytes(weights, "--weights"), _bytes(activations, "--activations"), _bytes(cuda_graphs, "--cuda-graphs")
    )
    budget = _budget(deployment, allocator, available, num_blocks, gpu, utilization, sizes, logits_budget)
    if length < 1 and (budget is not None or num_blocks is not None or simulate is not None):
        flag = "--ctx" if longest is None else "--max-model-len"
        raise UserError(f"{flag} must be at least 1, got {length}: what fits is counted in requests that have tokens")
    if simulate is not None:
        speed = Rates(prefill=parse_tokens(prefill_rate, "--prefill-rate", "tokens per second"), decode=decode_rate)
        trace = (simulate, parse_tokens(requests, "--requests", "requests"), rate)
        _simulate(
            deployment, allocator, trace, speed, _tokens(retention, "--retention") or 0, budget, num_blocks, format
        )
        return
    result = account(
        deployment,
        allocator,
        context,
        baseline=_baseline(baseline, deployment, fields),
        budget=budget,
        num_blocks=num_blocks,
        measured_bytes=_measure(deployment, allocator, context, device) if measure else None,
    )
    _print(result, by or "kind", format, explain=explain, defaulted=main is None and cache_type is None)
    if plot is not None:
        typer.echo(str(plot_memory(result, plot)), err=True)


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


def _context(ctx: str | None, longest: int | None, shape: ModelShape) -> int:
    if ctx is None:
        return shape.max_positions if longest is None else longest
    context = parse_tokens(ctx, "--ctx")
    if longest is not None and context > longest:
        raise UserError(f"--ctx {context:,} is longer than --max-model-len {longest:,}: no engine admits that request")
    return context


def _precision(main: str | None, indexer: str | None, engine: Engine | None) -> tuple[str, str]:
    """Main defaults to bf16 for ideal and fp8 for an engine; the indexer follows, and is never bf16 in an engine."""
    chosen = main or ("fp8" if engine else "bf16")
    return chosen, indexer or ("fp8" if engine else chosen)


def _baseline(name: str, deployment: Deployment, fields: dict[str, Any]) -> Deployment | None:
    """The same deployment of the baseline, with an fp8 indexer where it has no such precision."""
    if name in ("none", deployment.shape.name):
        return None
    shape = load_shape(name)
    known = deployment.indexer in INDEXER_PRECISIONS[shape.family]
    kept = {key: value for key, value in fields.items() if key != "mtp" or shape.mtp_layers}
    indexer = deployment.indexer if known else "fp8"
    return Deployment(shape, deployment.main, indexer, max_model_len=deployment.max_model_len, **kept)


def _budget(
    deployment: Deployment, engine: Engine | None, available: str | None, num_blocks: int | None, gpu: str | None,
    utilization: float, sizes: Given, logits: str | None,
) -> Budget | None:  # fmt: skip
    if sum(given is not None for given in (available, gpu, num_blocks)) > 1:
        raise UserError("give one of --available, --gpu and --num-blocks")
    if engine is None and (available is not None or gpu is not None or num_blocks is not None):
        raise UserError("capacity needs an allocator: give --engine, such as --engine vllm")
    if num_blocks is not None and not 1 <= num_blocks <= LARGEST:
        limit = "at least 1" if num_blocks < 1 else f"at most {LARGEST:,}"
        raise UserError(f"--num-blocks must be {limit}, got {num_blocks:,}")
    chunked = _bytes(logits, "--logits-budget")
    if chunked is None and isinstance(engine, Vllm):
        chunked = VLLM_LOGITS_BUDGET
    workspaces = () if isinstance(engine, LlamaCpp) else attention_workspaces(deployment, chunked)
    if available is not None:
        if sizes != Given():
            raise UserError("--weights, --activations and --cuda-graphs go with --gpu; --available is what they leave")
        return given_budget(parse_bytes(available, "--available"), deployment, workspaces)
    if gpu is None:
        if sizes != Given():
            raise UserError("--weights, --activations and --cuda-graphs need --gpu, such as --gpu 8xH200")
        return None
    count, known = parse_gpus(gpu)
    if count > 1 and engine is not None and "tp" not in engine.options:
        raise UserError(f"--gpu: {engine.title} is accounted on one GPU; give --gpu {known.name}")
    if isinstance(engine, Sglang):
        refuse_dp_within_tp(deployment, count)
    return gpu_budget(deployment, known, count, utilization, sizes, workspaces)


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
        from dsv4bench.cli.console import output_console

        print_sections(sections, output_console())


def _measure(deployment: Deployment, engine: Engine | None, context: int, device: str) -> int:
    if not isinstance(engine, Vllm):
        raise UserError("--measure allocates blocks: give --engine vllm")
    try:
        from dsv4bench.stack.measure import measure_request
    except ImportError as error:
        raise UserError("--measure needs torch: pip install '.[torch]' in a checkout of dsv4bench") from error
    return measure_request(engine.layout(deployment), engine.blocks_held(deployment, context), device or None)


def _simulate(
    deployment: Deployment, engine: Engine | None, trace: tuple[str, int, float | None], rates: Rates,
    retention: int, budget: Budget | None, num_blocks: int | None, format: str,
) -> None:  # fmt: skip
    from dsv4bench.memory.simulate import simulate
    from dsv4bench.memory.trace import MOST_REQUESTS, load_requests
    from dsv4bench.report.simulation_tables import simulation_json, simulation_sections

    if not isinstance(engine, Vllm):
        raise UserError("--simulate replays block allocators: give --engine vllm")
    _, count, rate = trace
    if not 1 <= count <= MOST_REQUESTS:
        raise UserError(f"--requests must be from 1 to {MOST_REQUESTS:,}, got {count:,}")
    for flag, speed in (("--rate", rate), ("--prefill-rate", rates.prefill), ("--decode-rate", rates.decode)):
        if speed is not None and not 0 < speed < math.inf:
            raise UserError(f"{flag} must be above 0, got {speed:g}")
    if retention % BLOCK_TOKENS:
        raise UserError(f"--retention must be 0 or a multiple of {BLOCK_TOKENS}, got {retention:,}")
    engine.check(deployment)
    capacity = engine.capacity(deployment, budget.available_bytes if budget else 0, num_blocks)
    pool = capacity.num_blocks if budget or num_blocks is not None else None
    requests = load_requests(*trace)
    typer.echo(f"replaying {len(requests):,} requests twice …", err=True)
    layout, rates = engine.layout(deployment), replace(rates, chunk=deployment.max_num_batched_tokens)
    found = simulate(
        trace[0], requests, layout, capacity.group_blocks, pool, rates=rates, retention=retention,
        drafts=deployment.mtp > 0,
    )  # fmt: skip
    if format == "json":
        typer.echo(json.dumps(simulation_json(found), indent=2))
    else:
        _print_sections(simulation_sections(found, f"{deployment.shape.name}, {engine.title}"), format)


def _from_log(path: Path, shape: ModelShape | None, format: str) -> None:
    from dsv4bench.memory.reported import compare_log
    from dsv4bench.memory.serverlog import read_log
    from dsv4bench.report.log_tables import log_json, log_sections

    comparison = compare_log(read_log(path), shape)
    if format == "json":
        typer.echo(json.dumps(log_json(comparison), indent=2))
    else:
        _print_sections(log_sections(comparison), format)
