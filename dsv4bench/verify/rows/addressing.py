"""Rows about where bytes lie: slabs, strides beyond 2³¹ bytes, and memory that holds garbage."""

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.verify.sequences import Sequences
from dsv4bench.verify.trial import Trial

STRIDE = 1_002_240
"""Bytes of a block of all layers of V4-Flash, as vLLM 0.33 packs them."""
FAR_BLOCKS = (2_142, 2_143, 4_286)
"""The last block below 2³¹ bytes at that stride, the first beyond it, and the first beyond 2³²."""
NAN_BYTE, HUGE_BYTE = 0xFF, 0x7F
"""Every float type reads the first as NaN; the second is 3.4e38 in fp32 and bf16 and NaN in e4m3."""


def packed_slabs(trial: Trial) -> None:
    """The same logical caches, contiguous and packed into slabs (page stride ≠ page bytes), give equal outputs."""
    lens = (255, 256, 257)
    start = [n - 1 for n in lens]
    slab, contiguous = (trial.sequences(requests=3, limit=257, start=start, slab=packed) for packed in (True, False))
    for name, cache in slab.caches.items():
        group = slab.groups[name]
        source, target = (seqs.tables[group].flatten().long() for seqs in (slab, contiguous))
        _raw(contiguous.caches[name])[target] = _raw(cache)[source]
    values = slab.step([1, 1, 1])
    trial.layer(values)
    other = contiguous.step([1, 1, 1])
    trial.layer(other)
    trial.same_layer(values["y"], other["y"])


def _raw(cache: PagedCache | torch.Tensor) -> torch.Tensor:
    return cache.pages if isinstance(cache, PagedCache) else cache


def far_blocks(trial: Trial) -> None:
    """Blocks on both sides of 2³¹ and 2³² bytes hold the same as near ones: offsets need 64 bits."""
    near = trial.sequences(requests=3, limit=12, start=[3, 4, 10])
    far = trial.sequences(requests=3, limit=12, start=[3, 4, 10])
    # untouched pages of a large CPU allocation cost no memory
    slab = torch.empty(((FAR_BLOCKS[-1] + 1), STRIDE), dtype=torch.uint8, device=trial.setting.device)
    _move_far(far, slab)
    values, right = far.step([2, 4, 1]), near.step([2, 4, 1])
    trial.layer(values)
    trial.layer(right)
    trial.same_layer(values["y"], right["y"])


def _move_far(seqs: Sequences, slab: torch.Tensor) -> None:
    """Put each cache at an offset of its own in the slab and give every group far blocks."""
    offset = 0
    for group, table in seqs.tables.items():
        used = sorted(set(table.flatten().tolist()))
        blocks = _far_ids(len(used))
        for name in (name for name, owner in seqs.groups.items() if owner == group):
            cache = seqs.caches[name]
            raw = _raw(cache)
            size = raw[0].numel() * raw.element_size()
            pages = slab[:, offset : offset + size]
            offset += -(-size // 576) * 576
            if isinstance(cache, PagedCache):
                moved: PagedCache | torch.Tensor = PagedCache(pages, cache.format, cache.entries)
            else:
                floats = slab.view(torch.float32)
                shape, first = (len(slab), *cache.shape[1:]), pages.storage_offset() // 4
                moved = floats.as_strided(shape, (STRIDE // 4, cache.shape[2], 1), first)
            _raw(moved)[torch.tensor(blocks, device=slab.device)] = raw[torch.tensor(used, device=slab.device)]
            seqs.caches[name] = moved
        renumbered = dict(zip(used, blocks, strict=True))
        far = [[renumbered[page] for page in row] for row in table.tolist()]
        seqs.tables[group] = torch.tensor(far, dtype=torch.int32, device=slab.device)


def _far_ids(count: int) -> list[int]:
    """Block ids around the boundaries, the named ones first."""
    ids = list(FAR_BLOCKS)
    step = 1
    while len(ids) < count:
        ids += [FAR_BLOCKS[0] - step, FAR_BLOCKS[1] + step, FAR_BLOCKS[2] - step]
        step += 1
    return ids[:count]


def garbage(trial: Trial) -> None:
    """Unused rows, freed pages, tails of index lists, of block tables and of logits hold NaN or 3e38: nothing leaks."""
    for byte, number in ((NAN_BYTE, float("nan")), (HUGE_BYTE, 3e38)):
        seqs = trial.sequences(requests=4, limit=280, poison=byte)
        trial.layer(seqs.step([1, 3, 130, 5 if trial.setting.quick else 260]))
        values = seqs.step([1, 1, 2, 1])
        spare = seqs.spare.get("window")
        if values["window_indices"] is not None:
            values["window_indices"] = _garbage_tail(values["window_indices"], values["window_lens"], spare, 64)
        if not trial.kind.has_indexer:
            if values["compressed_indices"] is not None:
                values["compressed_indices"] = _garbage_tail(
                    values["compressed_indices"], values["compressed_lens"], seqs.spare["full"], 2
                )
            trial.layer(values)
            continue
        names = [stage.name for stage in trial.stages]
        trial.layer(values, trial.between(names[0], "indexer_logits"))
        logits = values["logits"]
        column = torch.arange(logits.shape[1], device=logits.device)
        values["logits"] = torch.where(column < values["candidate_lens"][:, None], logits, number)
        trial.layer(values, trial.between("topk", names[-1]))


def _garbage_tail(indices: torch.Tensor, lens: torch.Tensor, page: int | None, entries: int) -> torch.Tensor:
    """Let everything past the length point at a poisoned page."""
    column = torch.arange(indices.shape[1], device=indices.device)
    return torch.where(column < lens[:, None], indices, (page or 0) * entries).int()
