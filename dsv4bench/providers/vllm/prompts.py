"""Prompts over a workspace: vLLM dequantises the entries that a few requests can see, then attends to bf16 rows."""

from dataclasses import dataclass

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import HEAD_DIM

from dsv4bench.providers.step import Split, once
from dsv4bench.providers.vllm.choice import without_cute
from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.pages import by_entry

WINDOW = 128
PROMPTS_PER_CHUNK = 4
"""vLLM bounds the workspace by this many requests of the greatest length."""
INDEX_ALIGNMENT = 128
_GATHER_MODULE = "vllm.models.deepseek_v4.common.ops.cache_utils"


@dataclass(frozen=True)
class Prompts:
    """The step's metadata that prompts need beside the stage's own arguments; names as in docs/stages.md."""

    split: Split
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    window_block_table: torch.Tensor
    block_table: torch.Tensor | None
    topk_indices: torch.Tensor | None
    candidate_lens: torch.Tensor | None


@dataclass(frozen=True)
class Chunk:
    """Requests that share a workspace.

    Attributes:
        first: the first request.
        last: one past the last request.
        compressed: rows of a request's workspace for compressed entries.
        rows: rows of a request's workspace in all.
    """

    first: int
    last: int
    compressed: int
    rows: int


def chunks_of(split: Split, ratio: int) -> list[Chunk]:
    """Divide the prompts as vLLM does: as many in a row as fit four requests of the greatest possible length.

    vLLM takes that length from its configuration; here it is the step's longest sequence and its number of tokens.
    """
    longest, tokens = max(split.seq_lens), sum(split.query_lens)
    limit = PROMPTS_PER_CHUNK * ((-(-longest // ratio) if ratio else 0) + WINDOW + tokens)
    chunks: list[Chunk] = []
    for request in range(split.decodes, len(split.query_lens)):
        compressed = split.seq_lens[request] // ratio if ratio else 0
        window = gather_len(split, request)
        if chunks:
            last = chunks[-1]
            wider = max(last.compressed, compressed)
            rows = wider + max(last.rows - last.compressed, window)
            if (request + 1 - last.first) * rows <= limit:
                chunks[-1] = Chunk(last.first, request + 1, wider, rows)
                continue
        chunks.append(Chunk(request, request + 1, compressed, compressed + window))
    return chunks


def gather_len(split: Split, request: int) -> int:
    """Window entries that a prompt's tokens see together: its own and up to 127 before them."""
    query_len = split.query_lens[request]
    return query_len + min(split.seq_lens[request] - query_len, WINDOW - 1)


def attend_prompts(
    library: Library,
    variant: str,
    q: torch.Tensor,
    out: torch.Tensor,
    window_cache: PagedCache,
    compressed_cache: PagedCache | None,
    ratio: int,
    prompts: Prompts,
    sink: torch.Tensor | None,
    softmax_scale: float,
) -> list[torch.Tensor]:
    """Write the prompts' outputs; returns their LSE [tokens, heads] by chunk.

    Args:
        library: vLLM.
        variant: which gather kernel.
        q: padded queries of the step [T, heads, 512].
        out: outputs of the step, same shape.
        window_cache: window entries.
        compressed_cache: compressed entries, None for swa.
        ratio: compress ratio.
        prompts: metadata.
        sink: padded sinks.
        softmax_scale: factor on q · k.
    """
    split, ratio = prompts.split, ratio if compressed_cache is not None else 0
    window_lens = once("gather lens", (prompts.seq_lens,), lambda: _gather_lens(split, q.device))
    local, width = _local_indices(prompts, ratio)
    found = []
    for chunk in chunks_of(split, ratio):
        tokens, requests = split.tokens_of(chunk.first, chunk.last), slice(chunk.first, chunk.last)
        if tokens.start == tokens.stop:
            continue  # requests that wait; vLLM has none in a step, and FlashMLA refuses no queries
        rows = q.new_empty((chunk.last - chunk.first, chunk.rows, HEAD_DIM))
        with without_cute(library, variant, _GATHER_MODULE):
            _gather(library, rows, window_cache, compressed_cache, ratio, prompts, window_lens, chunk)
        indices, counts = library.function("combine_indices")(
            topk_indices=local[tokens],
            query_start_loc=prompts.query_start[chunk.first : chunk.last + 1],
            seq_lens=prompts.seq_lens[requests],
            gather_lens=window_lens[requests],
            window_size=WINDOW,
            compress_ratio=max(ratio, 1),
            topk=width,
            M=chunk.rows,
            N=chunk.compressed,
        )
        _, _, lse = library.function("sparse_prefill")(
            q=q[tokens],
            kv=rows.view(-1, 1, HEAD_DIM),
            indices=indices.unsqueeze(1),
            sm_scale=softmax_scale,
            attn_sink=sink,
            topk_length=counts,
            out=out[tokens],
        )
        found.append(lse)
    return found


def _gather(
    library: Library,
    rows: torch.Tensor,
    window_cache: PagedCache,
    compressed_cache: PagedCache | None,
    ratio: int,
    prompts: Prompts,
    window_lens: torch.Tensor,
    chunk: Chunk,
) -> None:
    """Fill a chunk's workspace: all compressed entries of each request, then its window entries."""
    gather, requests = library.function("gather_entries"), slice(chunk.first, chunk.last)
    lens = prompts.seq_lens[requests]
    if compressed_cache is not None:
        assert prompts.block_table is not None
        gather(
            out=rows,
            k_cache=by_entry(compressed_cache),
            seq_lens=lens // ratio,
            gather_lens=None,
            block_table=prompts.block_table[requests],
            block_size=compressed_cache.entries,
            offset=0,
        )
    gather(
        out=rows,
        k_cache=by_entry(window_cache),
        seq_lens=lens,
        gather_lens=window_lens[requests],
        block_table=prompts.window_block_table[requests],
        block_size=window_cache.entries,
        offset=chunk.compressed,
    )


def _gather_lens(split: Split, device: torch.device) -> torch.Tensor:
    values = [gather_len(split, request) for request in range(len(split.query_lens))]
    return torch.tensor(values, dtype=torch.int32, device=device)


def _local_indices(prompts: Prompts, ratio: int) -> tuple[torch.Tensor, int]:
    """Request-local indices int32 [T, n] and n: of the top-k for c4a, all entries for c128a, unused for swa.

    vLLM builds those of c128a once per step.
    """
    lens = prompts.candidate_lens
    if not ratio:
        tokens = sum(prompts.split.query_lens)
        return prompts.window_block_table[:1, :1].expand(tokens, 1), 0
    if ratio == 4:
        assert prompts.topk_indices is not None
        return prompts.topk_indices, prompts.topk_indices.shape[1]
    assert lens is not None
    entries = -(-(max(prompts.split.seq_lens) // ratio) // INDEX_ALIGNMENT) * INDEX_ALIGNMENT or INDEX_ALIGNMENT

    def enumerate_all() -> torch.Tensor:
        index = torch.arange(entries, dtype=torch.int32, device=lens.device)
        return torch.where(index < lens[:, None], index, -1).int()

    return once("all entries", (lens,), enumerate_all, entries), entries
