"""Reported against predicted: what a server's log says, beside what the arithmetic gives for the same configuration.

What the log leaves out is inferred where one known value reproduces the reported figures, and said to be inferred.
Where none does, the prediction is shown for the nearest, and the nearest is said to be no more than that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import engine_named
from dsv4bench.memory.engines.sglang import Sglang
from dsv4bench.memory.engines.vllm import Vllm
from dsv4bench.memory.layout import GENERATIONS
from dsv4bench.memory.serverlog import ServerLog
from dsv4bench.model.shape import ModelShape

GIB = 2**30
STEP_TOKENS = (8192, 2048, 4096, 8448, 16384, 32768)
"""Values of max_num_batched_tokens tried where a log does not say."""


@dataclass(frozen=True)
class Finding:
    """One figure.

    Attributes:
        name: what it is.
        reported: as the log prints it.
        low: predicted, at the lower end of what rounding of the log's inputs allows.
        high: predicted, at the upper end.
        digits: decimals the log prints.
    """

    name: str
    reported: float
    low: float
    high: float
    digits: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the reported figure lies in the predicted range, at the printed precision."""
        return round(self.low, self.digits) <= self.reported <= round(self.high, self.digits)

    @property
    def difference(self) -> float:
        """Relative difference of the reported figure to the nearer end of the predicted range; 0 inside it."""
        if self.agrees or not self.reported:
            return 0.0
        nearest = self.low if self.reported < self.low else self.high
        return self.reported / nearest - 1 if nearest else 0.0


@dataclass(frozen=True)
class Comparison:
    """A log against the arithmetic.

    Attributes:
        title: engine, version and configuration.
        findings: figure by figure.
        lines: what was inferred or only tried, and how a difference is explained.
    """

    title: str
    findings: tuple[Finding, ...]
    lines: tuple[str, ...]


def compare_log(log: ServerLog, shape: ModelShape | None = None) -> Comparison:
    """Rebuild the configuration of a log and predict its figures.

    Args:
        log: the log.
        shape: the model, if the caller knows better.

    Raises:
        UserError: the log does not say enough.
    """
    model = shape or log.shape
    return _sglang(log, model) if log.engine == "sglang" else _vllm(log, model)


# --- vLLM ------------------------------------------------------------------------------------------------------------
def _vllm(log: ServerLog, shape: ModelShape) -> Comparison:
    length, tokens = log.integer("max_model_len"), log.integer("kv_cache_tokens")
    if length == 0:
        raise UserError(f"{log.path}: 'Maximum concurrency for 0 tokens per request' says no length of a request")
    if length is None:
        raise UserError(f"{log.path}: the line 'Maximum concurrency for … tokens per request' is missing")
    base = Deployment(
        shape=shape,
        max_model_len=length,
        layout="flashinfer" if log.flashinfer else "flashmla",
        indexer="fp4" if log.fp4 else "fp8",
        mtp=log.integer("drafts") or 0,
        pp=log.integer("pp") or 1,
    )
    version = log.found.get("version")
    engine, plan, findings, inferred = _best(log, base, [version] if version else list(GENERATIONS[::-1]))
    title = f"{engine.title}, {shape.name}, {plan.layout}, indexer {plan.indexer}, max_model_len {length:,}"
    title += f", {plan.pp} pipeline stages" if plan.pp > 1 else ""
    lines = [f"{_how_known(findings)}: {text}" for text in inferred]
    lines.append(f"tokens in flight: {engine.in_flight(plan):,}")
    if "num_blocks" not in log.found and "available_gib" in log.found:
        lines.append(f"the log prints {log.found['available_gib']} GiB: its rounding is the predicted range")
    if tokens is not None:
        lines.append("'GPU KV cache size' is derived, concurrency × max_model_len, and moves with both")
    if version and not all(finding.agrees for finding in findings):
        other, _, others, _ = _best(log, base, [name for name in GENERATIONS if name != engine.generation])
        if all(finding.agrees for finding in others):
            lines.append(f"the figures are those of the {other.generation} generation, not of vLLM {version}")
    lines += _explain(findings, "another block layout, or memory that the log's inputs do not show")
    return Comparison(title, findings, tuple(lines))


_Candidate = tuple[Vllm, Deployment, tuple[Finding, ...], tuple[str, ...]]


def _best(log: ServerLog, base: Deployment, versions: list[str]) -> _Candidate:
    """The first of the configurations that come nearest to the reported figures."""
    tried = _vllm_candidates(log, base, versions)
    return min(tried, key=lambda candidate: sum(abs(finding.difference) for finding in candidate[2]))


def _vllm_candidates(log: ServerLog, base: Deployment, versions: list[str]) -> Iterator[_Candidate]:
    batched = log.integer("batched_tokens")
    steps = [batched] if batched else list(STEP_TOKENS)
    scheduling = [False, True] if log.async_scheduling is None else [log.async_scheduling]
    drafts = [base.mtp] if "drafts" in log.found or not base.shape.mtp_layers else [0, 1]
    for name, mtp, step, async_scheduling in product(versions, drafts, steps, scheduling):
        engine = engine_named(f"vllm@{name}")
        assert isinstance(engine, Vllm)
        plan = replace(base, mtp=mtp, max_num_batched_tokens=step, async_scheduling=async_scheduling)
        inferred = [] if "version" in log.found else [f"vLLM generation {engine.generation}: the log names no version"]
        if not batched:
            inferred.append(f"max_num_batched_tokens {step:,}: the log does not say")
        if async_scheduling and log.async_scheduling is None and engine.generation == "packed":
            inferred.append("async scheduling: the log does not say")
        if mtp and "drafts" not in log.found:
            inferred.append("an MTP layer: the log does not say")
        yield engine, plan, _vllm_findings(log, engine, plan), tuple(inferred)


def _vllm_findings(log: ServerLog, engine: Vllm, plan: Deployment) -> tuple[Finding, ...]:
    blocks, gib = log.integer("num_blocks"), log.found.get("available_gib")
    if gib is not None:
        half = 0.5 * 10.0 ** -len(gib.partition(".")[2])
        edges = [engine.capacity(plan, int((float(gib) + sign * half) * GIB)) for sign in (-1, 1)]
    elif blocks is not None:
        edges = [engine.capacity(plan, 0, num_blocks=blocks)] * 2
    else:
        raise UserError(f"{log.path}: neither 'Available KV cache memory' nor a number of GPU blocks is there")
    low, high = edges
    findings = []
    if blocks is not None and gib is not None:
        findings.append(Finding("blocks", blocks, low.num_blocks or 0, high.num_blocks or 0))
    tokens, concurrency = log.integer("kv_cache_tokens"), log.number("concurrency")
    if tokens is not None:
        findings.append(Finding("KV cache tokens", tokens, low.kv_cache_tokens, high.kv_cache_tokens))
    if concurrency is not None:
        findings.append(Finding("concurrency", concurrency, low.concurrency, high.concurrency, 2))
    return tuple(findings)


# --- SGLang ----------------------------------------------------------------------------------------------------------
def _sglang(log: ServerLog, shape: ModelShape) -> Comparison:
    reported = log.number("sglang_per_token")
    assert reported is not None
    engine = Sglang("latest")
    tried = list(_sglang_candidates(log, shape))
    plan, per_token = min(tried, key=lambda candidate: abs(candidate[1] - reported))
    findings = [Finding("bytes per full token", reported, per_token, per_token, 2)]
    findings += _sglang_pools(log, engine, plan)
    rows = f"c4 rows {plan.c4_state_rows}/128, c128 rows {plan.c128_state_rows}"
    title = f"SGLang, {shape.name}, swa ratio {plan.swa_ratio:g}, state {plan.state}, {rows}, {plan.mtp} draft layers"
    inferred = "state precision, state rows, draft layers" + ("" if "sglang_ratio" in log.found else ", swa ratio")
    lines = [f"{_how_known(findings[:1])} from the bytes per full token: {inferred}"]
    lines += _explain(tuple(findings), "no known choice of state rows, precision and ratio gives these bytes")
    return Comparison(title, tuple(findings), tuple(lines))


def _sglang_candidates(log: ServerLog, shape: ModelShape) -> Iterator[tuple[Deployment, float]]:
    engine, ratio = Sglang("latest"), log.number("sglang_ratio")
    ratios = [ratio] if ratio else [0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.8, 1.0]
    drafts = (0, 1) if shape.mtp_layers else (0,)
    for share, c128, c4, state, mtp in product(ratios, (0, 1, 2), (8, 16), ("fp32", "bf16"), drafts):
        plan = Deployment(
            shape=shape, swa_ratio=share, c128_state_rows=c128, c4_state_rows=c4, state=state, mtp=mtp,
            fixed_state_bytes=int((log.number("sglang_fixed_gib") or 0) * GIB),
        )  # fmt: skip
        yield plan, float(engine.bytes_per_token(plan))


def _sglang_pools(log: ServerLog, engine: Sglang, plan: Deployment) -> list[Finding]:
    available, full = log.number("sglang_available_gib"), log.integer("sglang_full")
    if available is None or full is None:
        return []
    low, high = (engine.capacity(plan, int((available + edge) * GIB)) for edge in (-0.01, 0.01))
    findings = [Finding("full tokens", full, low.kv_cache_tokens, high.kv_cache_tokens)]
    for part in log.found.get("sglang_pools", "").split(","):
        name, _, value = part.strip().partition("=")
        if name in low.pools and name != "full" and value.isdigit():
            findings.append(Finding(f"{name} tokens", int(value), low.pools[name], high.pools[name]))
    return findings


def _how_known(findings: Sequence[Finding]) -> str:
    """What to call a value that the log leaves out, by whether it reproduces the figures."""
    return "inferred" if all(finding.agrees for finding in findings) else "nearest of those tried, not inferred"


def _explain(findings: tuple[Finding, ...], otherwise: str) -> list[str]:
    if all(finding.agrees for finding in findings):
        return ["every figure agrees within the printed rounding"]
    apart = ", ".join(f"{f.name} {100 * f.difference:+.2f} %" for f in findings if not f.agrees)
    return [f"not explained: {apart}; {otherwise}"]
