"""How many shares attention cuts a token's entries into: full waves of short programs against the cost of joining them.

The cost model is a few lines of arithmetic over what a launch will do. Its constants are fitted to every cell and
number of shares of ``kernels/measured/h200-attention-v8.json`` (one NVIDIA H200, 2026-11-29), where it picks a number
within 5 % of the best.
"""

from dataclasses import dataclass
from functools import lru_cache

TILE = 64
"""Entries of a tile."""
MAX_SPLITS = 128

_CACHE_SHARE = 0.8
"""Part of L2 in which rows and shares stay until they are read again."""


@dataclass(frozen=True)
class Gpu:
    """What the plan needs to know of a GPU.

    Attributes:
        processors: multiprocessors; each holds one attention program.
        cache_bytes: size of L2.
    """

    processors: int
    cache_bytes: int


@dataclass(frozen=True)
class Cost:
    """What a kernel's work takes, in microseconds.

    Attributes:
        start: from launch to the first tile and from the last tile to the end.
        item: of ``start``, what a program's second and later items still pay.
        tile: a tile while the other multiprocessors are idle.
        busy: what a tile takes longer while they are not.
        share: each share that the join reads; its launch hides behind the attention programs.
        cached: megabytes of shares written and read back per microsecond within L2.
        uncached: the same beyond it.
        share_bytes: an element of a share.
        entry_bytes: an entry in the cache.
    """

    start: float = 7.1
    item: float = 4.9
    tile: float = 2.3
    busy: float = 0.6
    share: float = 0.15
    cached: float = 6.0
    uncached: float = 5.2
    share_bytes: int = 4
    entry_bytes: int = 584


COSTS = {
    "gluon": Cost(share_bytes=2),
    "rows": Cost(start=6.5, item=3.0, tile=1.5, busy=0.5, share_bytes=2, entry_bytes=1024),
    "latent": Cost(item=7.1, tile=2.65, busy=0.45, share=0.05),
    "plain": Cost(item=7.1, tile=8.0, busy=0.0),
}
"""Per form of the kernel. The first is fitted; of ``latent``, tile and share are fitted to
``kernels/measured/h200-latent-v1.json`` (the same card and day); of ``plain`` the tile's cost is measured. ``rows`` is
read off six cells (``docs/attention-kernels.md``), without a sweep over numbers of shares."""


@dataclass(frozen=True)
class Walk:
    """What prefill's many items take a program, in microseconds.

    Attributes:
        tile: a tile, other multiprocessors busy and rows in L2.
        item: an item beyond its tiles.
    """

    tile: float
    item: float


FROM_PAGES = Walk(tile=2.4, item=5.2)
"""fp8 entries straight from their pages."""
FROM_ROWS = Walk(tile=1.7, item=3.0)
"""bf16 rows of a workspace. Both are fitted to the prefill cells of ``docs/attention-kernels.md`` (H200)."""
_TILE_BEYOND_CACHE = 2.0
"""A tile of rows that come from device memory: 130 of them in a decode step of a million tokens."""
_GATHER_START = 8.0
_GATHER_ENTRY = 0.36e-3


def launch_us(tokens: int, heads: int, tiles: int, per_program: int, splits: int, gpu: Gpu, cost: Cost) -> float:
    """Microseconds that attention with ``splits`` shares a token, and joining them, should take."""
    items = tokens * -(-heads // per_program) * splits
    programs = min(items, gpu.processors)
    rounds = -(-items // programs)
    tile = cost.tile + cost.busy * programs / gpu.processors
    walk = cost.start + (rounds - 1) * cost.item + rounds * -(-tiles // splits) * tile
    if splits == 1:
        return walk
    moved = 2 * tokens * heads * splits * 512 * cost.share_bytes
    read = tokens * tiles * TILE * cost.entry_bytes
    rate = cost.cached if moved + read < _CACHE_SHARE * gpu.cache_bytes else cost.uncached
    return walk + cost.share * splits + moved / 1e6 / rate


@lru_cache
def plan_splits(tokens: int, heads: int, tiles: int, per_program: int, gpu: Gpu, form: str) -> int:
    """Shares per token that should finish first.

    Args:
        tokens: tokens of the step.
        heads: query heads.
        tiles: largest number of tiles a token can have.
        per_program: heads of a program.
        gpu: the device.
        form: kernel whose costs apply, a key of ``COSTS``.
    """
    cost = COSTS[form]
    candidates = range(1, min(max(tiles, 1), MAX_SPLITS) + 1)
    return min(candidates, key=lambda splits: launch_us(tokens, heads, tiles, per_program, splits, gpu, cost))


def gather_us(entries: int) -> float:
    """Microseconds that dequantising ``entries`` into a workspace takes, two launches."""
    return _GATHER_START + _GATHER_ENTRY * entries


def gather_saves_us(tokens: int, heads: int, tiles: int, entries: int, gpu: Gpu) -> float:
    """Microseconds that prefill from fp8 pages saves by reading bf16 rows instead, the filling of them not counted."""
    beyond = 1024 * entries > _CACHE_SHARE * gpu.cache_bytes
    tile = FROM_PAGES.tile - (_TILE_BEYOND_CACHE if beyond else FROM_ROWS.tile)
    items = tokens * -(-heads // 64) / gpu.processors
    return items * (tiles * tile + FROM_PAGES.item - FROM_ROWS.item)


def gathers(tokens: int, heads: int, tiles: int, entries: int, gpu: Gpu) -> bool:
    """Whether prefill on Hopper should dequantise what it reads into a workspace first.

    Args:
        tokens: tokens of the step.
        heads: query heads.
        tiles: largest number of tiles a token can have.
        entries: entries to gather, window and compressed, of all requests.
        gpu: the device.
    """
    return gather_saves_us(tokens, heads, tiles, entries, gpu) > gather_us(entries)
