"""What ``dsv4bench memory`` refuses: flags that the mode, the engine or the question asked would silently ignore."""

from pathlib import Path
from typing import Any

from dsv4bench.cli.flags import refuse_beside, refuse_without
from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import ENGINES, Engine, engine_named
from dsv4bench.memory.engines.vllm import Vllm

CSV_HAS_NOT = frozenset(("explain", "available", "gpu", "num_blocks"))
"""What only adds sections beside the first, which is all that CSV holds."""
OF_CAPACITY = frozenset(
    ("max_num_batched_tokens", "in_flight_tokens", "async_scheduling", "tp", "dp", "fixed_state", "max_model_len")
)
"""What decides how much fits, and no byte of the one request that is shown where that is not asked."""


def refuse_of_other_modes(asked: dict[str, str], simulate: str | None, format: str) -> None:
    """Refuse flags that only a mode or a form reads which was not chosen.

    Args:
        asked: the flags given, by parameter.
        simulate: mix or trace that is replayed, if any.
        format: the form of the output.
    """
    if simulate is not None:
        refuse_beside("--simulate", asked, {"plot", "by", "explain", "baseline", "measure", "device"})
        if _is_trace(simulate):
            refuse_beside(f"--simulate {simulate}", asked, {"requests", "rate"})
    else:
        refuse_without("--simulate", asked, {"requests", "rate", "prefill_rate", "decode_rate", "retention"})
    if "measure" not in asked:
        refuse_without("--measure", asked, {"device"})
    if "gpu" not in asked:
        refuse_without("--gpu", asked, {"utilization"})
        if "available" not in asked:
            refuse_without("--gpu or --available", asked, {"logits_budget"})
    if "in_flight_tokens" in asked:
        refuse_beside("--in-flight-tokens", asked, {"async_scheduling"})
    if format == "csv":
        refuse_beside("--format csv", asked, {"explain"} if simulate else CSV_HAS_NOT)


def refuse_unread(fields: dict[str, Any], engine: Engine | None) -> None:
    """Refuse fields of a deployment that the engine does not read."""
    names = {"fixed_state_bytes": "--fixed-state"}
    title = engine.title if engine else "ideal"
    for name in (name for name, value in fields.items() if value is not None):
        flag = names.get(name, f"--{name.replace('_', '-')}")
        if name in ("main", "indexer"):
            if engine is not None and "cache_type" in engine.options:
                raise UserError(f"{flag} means nothing to {title}; it has --cache-type")
        elif name != "mtp" and (engine is None or name not in engine.options):
            readers = [other for other in ENGINES if name in engine_named(other).options]
            raise UserError(f"{flag} means nothing to {title}; it is for {', '.join(readers)}")


def refuse_uncounted(asked: dict[str, str], engine: Engine | None) -> None:
    """Refuse flags that decide only how much fits, where that is not asked; a replay counts its pool, not its GPUs."""
    of_ranks = {"dp"} if "dcp" in asked else {"dp", "tp"}  # dcp shares the ranks of tp
    if "simulate" in asked:
        if "gpu" not in asked:
            refuse_without("--gpu", asked, of_ranks)
    elif not asked.keys() & {"gpu", "available", "num_blocks"}:
        unread = OF_CAPACITY - {"tp"} | of_ranks
        if "ctx" not in asked:
            unread -= {"max_model_len"}  # it is the request that is shown
        elif "max_model_len" in asked:
            asked = asked | {"max_model_len": "--max-model-len beside --ctx"}
        counted = "--gpu, --available or --num-blocks" if isinstance(engine, Vllm) else "--gpu or --available"
        refuse_without(counted, asked, unread)


def refuse_dp_within_tp(deployment: Deployment, count: int) -> None:
    """Refuse SGLang's way to write dp attention, where dp divides tp, by what is meant."""
    tp, dp = deployment.tp, deployment.dp
    if dp > 1 and tp * deployment.pp == count and tp % dp == 0:
        raise UserError(
            f"--gpu: {count} GPUs are tp · dp · pp here; SGLang's dp attention, whose --dp {dp} divides --tp {tp}, is "
            f"--tp {tp // dp} --dp {dp}"
        )


def _is_trace(source: str) -> bool:
    """Whether ``--simulate`` names a file, and no mix."""
    from dsv4bench.memory.trace import MIXES

    return source not in MIXES and Path(source).is_file()
