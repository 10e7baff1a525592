"""Top-k, with the kernel that vLLM takes for the step, and from selected entries to slots of the cache."""

import torch

from dsv4bench.providers.step import once, split_step, zeros
from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.release import BOUND_BY_TOKENS, COOPERATIVE_ROWS, KNOWN

WORKSPACE_BYTES = 1 << 20
"""Scratch of the radix kernels; vLLM reserves as much."""
RADIX_K = (512, 1024, 2048)
"""Selections that the cooperative and the persistent kernel exist for."""

_WORKSPACES: dict[torch.device, torch.Tensor] = {}


def topk(
    library: Library,
    *,
    logits: torch.Tensor,
    candidate_lens: torch.Tensor,
    k: int,
    query_start: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Select the k best entries of each token.

    As in vLLM the result is filled with −1 first, which is a kernel of its own and part of the stage. Decoding requests
    take the cooperative kernel (few rows), the persistent one, or one row at a time (a k that neither has); prompts are
    selected row by row. Where the step's requests are unknown, all tokens count as decoding.
    """
    tokens = len(candidate_lens)
    chosen = torch.full((tokens, k), -1, dtype=torch.int32, device=logits.device)
    if not tokens or not logits.shape[1]:
        return chosen
    split = split_step(query_start, seq_lens)
    boundary = split.decode_tokens if split else tokens
    if boundary:
        longest = max(split.seq_lens) if split else logits.shape[1]
        _decode(library, logits[:boundary], candidate_lens[:boundary], chosen[:boundary], k, longest)
    if boundary < tokens:
        _rows(library, logits[boundary:], candidate_lens[boundary:], chosen[boundary:], k)
    return chosen


def decode_kernel(library: Library, rows: int, stride: int, k: int, capability: tuple[int, int]) -> str:
    """Name of the function that vLLM takes for a decode step's selection."""
    if k not in RADIX_K:
        return "row_topk_decode"
    few = rows <= COOPERATIVE_ROWS[library.release or KNOWN[-1]] and stride % 4 == 0
    return "cooperative_topk" if few and capability[0] in (9, 10) else "persistent_topk"


def _decode(
    library: Library, logits: torch.Tensor, lens: torch.Tensor, chosen: torch.Tensor, k: int, longest: int
) -> None:
    rows, device = len(lens), logits.device
    name = decode_kernel(library, rows, logits.stride(0), k, torch.cuda.get_device_capability(device))
    if name == "row_topk_decode":
        library.function(name)(logits, 1, lens, chosen, rows, logits.stride(0), logits.stride(1), k)
        return
    if device not in _WORKSPACES:
        _WORKSPACES[device] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    bound = longest if name in BOUND_BY_TOKENS[library.release or KNOWN[-1]] else logits.shape[1]
    library.function(name)(logits, lens, chosen, _WORKSPACES[device], k, bound)


def _rows(library: Library, logits: torch.Tensor, lens: torch.Tensor, chosen: torch.Tensor, k: int) -> None:
    starts = zeros(len(lens), lens.device)
    library.function("row_topk_prefill")(logits, starts, lens, chosen, len(lens), logits.stride(0), logits.stride(1), k)


def index_map(
    library: Library,
    *,
    topk_indices: torch.Tensor,
    token_to_request: torch.Tensor,
    block_table: torch.Tensor,
    entries: int,
    ratio: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the selected entries and how many there are (Triton; V3.2 has a kernel of its own).

    vLLM marks padding tokens once per step; here every token counts.
    """
    tokens, k = topk_indices.shape
    if not tokens:
        return topk_indices.clone(), topk_indices.new_empty(0)
    if ratio == 1:
        slots, lens = library.function("latent_global_topk")(
            req_id=token_to_request,
            block_table=block_table,
            token_indices=topk_indices,
            BLOCK_SIZE=entries,
            NUM_TOPK_TOKENS=k,
            return_valid_counts=True,
        )
        return slots, lens
    valid = once("valid", (token_to_request,), lambda: torch.ones_like(token_to_request, dtype=torch.bool))
    slots, lens = library.function("global_topk")(
        topk_indices=topk_indices,
        token_to_req_indices=token_to_request,
        block_table=block_table,
        block_size=entries,
        is_valid_token=valid,
    )
    return slots, lens
