"""From a GPU to the memory its cache gets: what is taken off, line by line, given or computed or not counted."""

from dataclasses import dataclass

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.workspaces import Workspace, computed_workspaces
from dsv4bench.model.gpus import Gpu
from dsv4bench.scenario.sizes import format_bytes

VLLM_LOGITS_BUDGET = 512 * 2**20
"""vLLM chunks the prefill's indexer logits to VLLM_SPARSE_INDEXER_MAX_LOGITS_MB, 512 by default."""


@dataclass(frozen=True)
class Given:
    """Sizes per GPU that only a deployment knows; None where they were not given.

    Attributes:
        weights: model weights.
        activations: peak activations, as profiled.
        cuda_graphs: CUDA-graph pool.
    """

    weights: int | None = None
    activations: int | None = None
    cuda_graphs: int | None = None


@dataclass(frozen=True)
class Budget:
    """The memory of one GPU.

    Attributes:
        gpu: which; None where the cache's memory was given as such.
        count: how many GPUs.
        utilization: share of the memory the engine may use.
        lines: what is taken off it.
        available_bytes: what is left for the cache.
    """

    gpu: Gpu | None
    count: int
    utilization: float
    lines: tuple[Workspace, ...]
    available_bytes: int


def given_budget(available: int, deployment: Deployment, workspaces: tuple[Workspace, ...]) -> Budget:
    """The budget of a deployment whose available cache memory is known, as an engine logs it; nothing is taken off."""
    return Budget(None, deployment.tp * deployment.dp * deployment.pp, 1.0, workspaces, available)


def attention_workspaces(deployment: Deployment, logits_budget: int | None) -> tuple[Workspace, ...]:
    """The workspaces that follow from the model, with the indexer's logits chunked to a budget if there is one."""
    return tuple(_chunked(line, logits_budget) for line in computed_workspaces(deployment))


def gpu_budget(
    deployment: Deployment,
    gpu: Gpu,
    count: int,
    utilization: float,
    given: Given,
    workspaces: tuple[Workspace, ...],
) -> Budget:
    """What a GPU leaves for the cache.

    Args:
        deployment: model, context and step size, parallel sizes.
        gpu: the GPU.
        count: how many; tp · dp · pp.
        utilization: share the engine may use, above 0 and at most 1.
        given: sizes the caller knows.
        workspaces: what the attention stack takes beside the cache.

    Raises:
        UserError: counts or shares that do not fit, or nothing left.
    """
    ranks = deployment.tp * deployment.dp * deployment.pp
    if count != ranks:
        sizes = f"tp {deployment.tp} · dp {deployment.dp} · pp {deployment.pp} = {ranks}"
        such = f", such as --tp {count}" if ranks == 1 else ""
        raise UserError(f"--gpu: {count} GPUs, but {sizes}; make them equal{such}")
    if not 0 < utilization <= 1:
        raise UserError(f"--utilization must be above 0 and at most 1, got {utilization}")
    lines = (
        _given_line("weights", given.weights, "--weights"),
        _given_line("activations", given.activations, "--activations"),
        _given_line("CUDA graphs", given.cuda_graphs, "--cuda-graphs"),
        *workspaces,
    )
    usable = int(gpu.memory_bytes * utilization)
    available = usable - sum(line.bytes or 0 for line in lines)
    if available <= 0:
        raise UserError(_nothing_left(gpu, usable, lines))
    return Budget(gpu, count, utilization, lines, available)


def _nothing_left(gpu: Gpu, usable: int, lines: tuple[Workspace, ...]) -> str:
    """The budget as a sentence."""
    taken = ", ".join(f"{line.name} {format_bytes(line.bytes)}" for line in lines if line.bytes)
    short = sum(line.bytes or 0 for line in lines) - usable
    return (
        f"nothing is left for the cache: {format_bytes(usable)} of each {gpu.name} are usable, {format_bytes(short)} "
        f"short of what comes before it ({taken})"
    )


def _given_line(name: str, size: int | None, flag: str) -> Workspace:
    return Workspace(name, size, "as given" if size is not None else f"give {flag}")


def _chunked(line: Workspace, budget: int | None) -> Workspace:
    if line.name != "indexer logits" or budget is None or line.bytes is None or line.bytes <= budget:
        return line
    return Workspace(
        line.name, budget, f"chunked; whole: {line.how.removesuffix(', if not chunked')} = {line.bytes:,} B"
    )
