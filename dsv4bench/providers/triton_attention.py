"""Attention of the ``triton`` provider: over pages, or over the bf16 rows that a step of prompts gathers from them.

A prompt's tokens read the same entries again and again. On Hopper it is therefore faster to dequantise what they read
once, into a workspace, and to attend that, unless a few tokens would gather a long context (``splits.gathers``). What
depends on the step alone is worked out once a step, as the lists over pages are; what fills the workspace, and the
mapping of a top-k, is done and timed at every call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS, HEAD_DIM
from dsv4_kernels.triton.gather_dequant import gather_dequant
from dsv4_kernels.triton.index_map import index_map
from dsv4_kernels.triton.sparse_attention import aligned_rows, gpu_of, on_hopper, visible_entries
from dsv4_kernels.triton.sparse_attention import sparse_attention as attend
from dsv4_kernels.triton.splits import TILE, gathers

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.step import Split, once, split_step
from dsv4bench.scenario.workload import MOST_DRAFTED

Result = tuple[torch.Tensor, torch.Tensor]
WINDOW = 128
WORKSPACE_ROWS = 1 << 20
"""Most rows gathered at once, 1 GiB: four requests of a million tokens in a c4a layer."""
_ROWS = FORMATS["main-bf16"]
_PAGE = 64
"""Rows of a page of the workspace: fixed, since kernels are compiled for it."""


@dataclass(frozen=True)
class Workspace:
    """Where a step's entries go.

    Attributes:
        requests: requests of the step.
        compressed: rows of a request for compressed entries, whole pages.
        rows: rows of a request in all, whole pages.
        window: window entries of the request that has most.
        entries: entries gathered, of all requests.
    """

    requests: int
    compressed: int
    rows: int
    window: int
    entries: int


def workspace_of(split: Split, ratio: int) -> Workspace:
    """The workspace of a step of prompts; ``ratio`` = 0 without compressed entries."""
    counts = [length // ratio if ratio else 0 for length in split.seq_lens]
    windows = [_window_len(split, request) for request in range(len(counts))]
    compressed, window = max(counts), max(windows)
    held = -(-compressed // _PAGE) * _PAGE
    rows = held + -(-window // _PAGE) * _PAGE
    return Workspace(len(counts), held, rows, window, sum(counts) + sum(windows))


@dataclass(frozen=True)
class Prompts:
    """A step of prompts alone, with what gathering needs of it; names as in docs/stages.md."""

    split: Split
    seq_lens: torch.Tensor
    positions: torch.Tensor
    token_to_request: torch.Tensor
    window_block_table: torch.Tensor
    block_table: torch.Tensor | None
    topk_indices: torch.Tensor | None
    ratio: int

    @property
    def whole(self) -> bool:
        """Whether all entries of a request are attended, not a top-k of them."""
        return self.ratio != LayerKind.C4A.ratio


def sparse_attention(
    *,
    q: torch.Tensor,
    window_cache: PagedCache | None,
    window_indices: torch.Tensor | None,
    window_lens: torch.Tensor | None,
    compressed_cache: PagedCache | None,
    compressed_indices: torch.Tensor | None,
    compressed_lens: torch.Tensor | None,
    sink: torch.Tensor | None,
    softmax_scale: float,
    max_candidates: int | None = None,
    query_start: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    token_to_request: torch.Tensor | None = None,
    window_block_table: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    topk_indices: torch.Tensor | None = None,
    ratio: int | None = None,
) -> Result:
    """``dsv4_kernels.triton.sparse_attention``, from gathered rows where that is faster.

    Parameters and results as in docs/stages.md. Without the step's metadata, everything is attended over the pages.
    """
    call = partial(
        attend, q=q, window_lens=window_lens, compressed_lens=compressed_lens, sink=sink, softmax_scale=softmax_scale,
        max_candidates=max_candidates,
    )  # fmt: skip
    if window_cache is not None and window_cache.format.name == "main-fp8":
        ratio = 0 if compressed_cache is None or ratio is None else ratio
        further = (seq_lens, positions, token_to_request, window_block_table, block_table, topk_indices)
        prompts = _prompts(len(q), ratio, query_start, *further)
        if prompts and (ratio or compressed_cache is None):
            workspace = workspace_of(prompts.split, ratio)
            visible = 0 if compressed_indices is None else visible_entries(compressed_indices, max_candidates)
            if pays(q, WINDOW // TILE + -(-visible // TILE), workspace):
                return _attend_rows(call, q, prompts, workspace, window_cache, compressed_cache, compressed_indices)
    over_pages: Result = call(
        window_cache=window_cache, window_indices=window_indices, compressed_cache=compressed_cache,
        compressed_indices=compressed_indices,
    )  # fmt: skip
    return over_pages


def _prompts(
    tokens: int,
    ratio: int,
    query_start: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    positions: torch.Tensor | None,
    token_to_request: torch.Tensor | None,
    window_block_table: torch.Tensor | None,
    block_table: torch.Tensor | None,
    topk_indices: torch.Tensor | None,
) -> Prompts | None:
    """The step as prompts; None where it holds something else or is not known well enough."""
    if seq_lens is None or positions is None or token_to_request is None or window_block_table is None:
        return None
    if ratio and (block_table is None or (ratio == LayerKind.C4A.ratio and topk_indices is None)):
        return None
    if tokens <= MOST_DRAFTED * len(seq_lens):
        return None  # may be decodes: told without reading the device
    split = split_step(query_start, seq_lens)
    if split is None or split.decodes or sum(split.query_lens) != tokens:
        return None
    return Prompts(split, seq_lens, positions, token_to_request, window_block_table, block_table, topk_indices, ratio)


def _attend_rows(
    call: Callable[..., Result],
    q: torch.Tensor,
    prompts: Prompts,
    workspace: Workspace,
    window_cache: PagedCache,
    compressed_cache: PagedCache | None,
    listed: torch.Tensor | None,
) -> Result:
    """Fill the workspace and attend it."""
    rows = q.new_empty((workspace.requests, workspace.rows, HEAD_DIM))
    cache = PagedCache(rows.view(torch.uint8).view(-1, _PAGE * _ROWS.record_bytes), _ROWS, _PAGE)
    step = (prompts.positions, prompts.seq_lens, prompts.token_to_request)
    firsts, lens, window = once("gathered window", step, lambda: _window(prompts, workspace), workspace)
    gather_dequant(
        cache=window_cache, block_table=prompts.window_block_table, firsts=firsts, lens=lens, max_len=workspace.window,
        out=rows, offset=workspace.compressed,
    )  # fmt: skip
    if compressed_cache is None or listed is None or prompts.block_table is None:
        return call(window_cache=cache, window_indices=window, compressed_cache=None, compressed_indices=None)
    starts, counts, table = once(
        "gathered entries", step, lambda: _entries(prompts, workspace), workspace, prompts.ratio
    )  # fmt: skip
    gather_dequant(
        cache=compressed_cache, block_table=prompts.block_table, firsts=starts, lens=counts,
        max_len=max(prompts.split.seq_lens) // prompts.ratio, out=rows, offset=0,
    )  # fmt: skip
    if prompts.whole:
        attended = once(
            "rows of entries", (*step, listed), lambda: _shifted(listed, prompts.token_to_request, workspace), workspace
        )
    else:
        attended = _selected(prompts, table)
    return call(window_cache=cache, window_indices=window, compressed_cache=cache, compressed_indices=attended)


def pays(q: torch.Tensor, tiles: int, workspace: Workspace) -> bool:
    """Whether a step of prompts should gather what it reads; ``tiles`` is the most that a token can have."""
    if not on_hopper() or not aligned_rows(q) or workspace.requests * workspace.rows > WORKSPACE_ROWS:
        return False
    return bool(gathers(len(q), q.shape[1], tiles, workspace.entries, gpu_of(q.device)))


def _window_len(split: Split, request: int) -> int:
    """Window entries that a prompt's tokens see together: its own and up to 127 before them."""
    query_len = split.query_lens[request]
    return query_len + min(split.seq_lens[request] - query_len, WINDOW - 1)


def _window(prompts: Prompts, workspace: Workspace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First position and number of each request's window entries, and the rows [T, 128] of each token's."""
    positions, request = prompts.positions, prompts.token_to_request.long()
    windows = [_window_len(prompts.split, request) for request in range(workspace.requests)]
    begins = [length - window for length, window in zip(prompts.split.seq_lens, windows, strict=True)]
    firsts, lens = (torch.tensor(n, dtype=torch.int32, device=positions.device) for n in (begins, windows))
    begin = (positions - (WINDOW - 1)).clamp_min(0) - firsts[request]
    column = torch.arange(WINDOW, device=positions.device)
    seen = column <= positions[:, None]
    first_row = request * workspace.rows + workspace.compressed + begin
    return firsts, lens, torch.where(seen, first_row[:, None] + column, -1).int()


def _entries(prompts: Prompts, workspace: Workspace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First and number of each request's compressed entries, and its pages of the workspace."""
    device = prompts.seq_lens.device
    counts = torch.tensor([n // prompts.ratio for n in prompts.split.seq_lens], dtype=torch.int32, device=device)
    pages = torch.arange(workspace.requests * workspace.rows // _PAGE, dtype=torch.int32, device=device)
    return torch.zeros_like(counts), counts, pages.view(workspace.requests, -1)


def _shifted(listed: torch.Tensor, token_to_request: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """Rows of all entries of each token's request, in the columns where ``listed`` has their slots."""
    column = torch.arange(listed.shape[1], dtype=torch.int32, device=listed.device)
    return torch.where(listed < 0, -1, column + (token_to_request * workspace.rows)[:, None]).int()


def _selected(prompts: Prompts, table: torch.Tensor) -> torch.Tensor:
    """Rows of the top-k: of a single request its numbers as they are, since its entries begin at row 0."""
    assert prompts.topk_indices is not None
    if len(prompts.split.query_lens) == 1:
        return prompts.topk_indices
    rows: torch.Tensor
    rows, _ = index_map(
        topk_indices=prompts.topk_indices, token_to_request=prompts.token_to_request, block_table=table, entries=_PAGE
    )
    return rows
