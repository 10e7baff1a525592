"""A few kilobytes of memory that the threads of one program count, exchange and look things up in.

Triton has no atomics on shared memory and no loads from computed places in it, and a histogram needs both. On NVIDIA
these functions are a few lines of PTX each, over an array of the kernel's own; elsewhere, in the interpreter included,
the words lie in a buffer in global memory (``buffer``). The compiler does not know that these functions touch memory:
call ``tl.debug_barrier`` between writing and reading. A kernel calls ``words`` once.
"""

import torch
import triton
import triton.language as tl

WORDS = tl.constexpr(4608)
"""int32 words a program has."""


def in_shared_memory() -> bool:
    """Whether the current target has the PTX form."""
    if triton.knobs.runtime.interpret:
        return False
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= 80


def buffer(programs: int, device: torch.device) -> torch.Tensor | None:
    """Where the words of ``programs`` programs lie if not in shared memory; contents don't matter."""
    return None if in_shared_memory() else torch.empty((programs, WORDS.value), dtype=torch.int32, device=device)


_DECLARE = tl.constexpr(".shared .align 16 .b8 dsv4_words[18432]; mov.u32 $0, dsv4_words;")
_STORE = tl.constexpr("""
{
.reg .pred wanted;
setp.ne.b32 wanted, $3, 0;
@wanted st.shared.b32 [$1], $2;
mov.b32 $0, 0;
}
""")
_STORE_TWO = tl.constexpr("""
{
.reg .pred wanted;
.reg .b32 place;
setp.eq.s32 wanted, $5, $6;
mad.lo.s32 place, $2, 4, $1;
@wanted st.shared.v2.b32 [place], {$3, $4};
mov.b32 $0, 0;
}
""")
_STORE_FOUR = tl.constexpr("""
{
.reg .pred wanted;
setp.ne.b32 wanted, $6, 0;
@wanted st.shared.v4.b32 [$1], {$2, $3, $4, $5};
mov.b32 $0, 0;
}
""")
_INCREMENT = tl.constexpr("""
{
.reg .b32 place;
mad.lo.s32 place, $2, 4, $1;
red.shared.add.u32 [place], 1;
mov.b32 $0, 0;
}
""")
_RAISE = tl.constexpr("""
{
.reg .pred first;
.reg .b32 lane, highest;
redux.sync.max.s32 highest, $2, 0xffffffff;
mov.u32 lane, %laneid;
setp.eq.u32 first, lane, 0;
@first red.shared.max.s32 [$1], highest;
mov.b32 $0, 0;
}
""")


@triton.jit
def words(place, SHARED: tl.constexpr):
    """The program's words: their shared address, or a pointer into ``place``."""
    if SHARED:
        mine = tl.inline_asm_elementwise(_DECLARE, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        mine = place + tl.program_id(0).to(tl.int64) * WORDS
    return mine


@triton.jit
def load_word(mine, at, SHARED: tl.constexpr):
    """Words number ``at``, a tensor or a scalar."""
    if SHARED:
        word = tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];", "=r,r", [mine + at * 4], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        word = tl.load(mine + at)
    return word


@triton.jit
def load_four(mine, at, SHARED: tl.constexpr):
    """Words ``at`` to ``at + 3``, ``at`` a multiple of 4."""
    if SHARED:
        four = tl.inline_asm_elementwise(
            "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r", [mine + at * 4],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
        )  # fmt: skip
    else:
        four = (tl.load(mine + at), tl.load(mine + at + 1), tl.load(mine + at + 2), tl.load(mine + at + 3))
    return four


@triton.jit
def store_word(mine, at, value, wanted, SHARED: tl.constexpr):
    """Write words where ``wanted``."""
    if SHARED:
        tl.inline_asm_elementwise(
            _STORE, "=r,r,r,r", [mine + at * 4, value, wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        tl.store(mine + at, value, mask=wanted)


@triton.jit
def store_two(mine, at, first, second, left, right, SHARED: tl.constexpr):
    """Write words ``at`` and ``at + 1`` where ``left`` equals ``right``, ``at`` even."""
    if SHARED:
        # compared within, since the compiler would carry the outcomes of all elements along
        tl.inline_asm_elementwise(
            _STORE_TWO, "=r,r,r,r,r,r,r", [mine, at, first, second, left, right], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        tl.store(mine + at, first, mask=left == right)
        tl.store(mine + at + 1, second, mask=left == right)


@triton.jit
def store_four(mine, at, first, second, third, fourth, wanted, SHARED: tl.constexpr):
    """Write words ``at`` to ``at + 3`` where ``wanted``, ``at`` a multiple of 4."""
    if SHARED:
        tl.inline_asm_elementwise(
            _STORE_FOUR, "=r,r,r,r,r,r,r", [mine + at * 4, first, second, third, fourth, wanted.to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(mine + at, first, mask=wanted)
        tl.store(mine + at + 1, second, mask=wanted)
        tl.store(mine + at + 2, third, mask=wanted)
        tl.store(mine + at + 3, fourth, mask=wanted)


@triton.jit
def increment(mine, at, SHARED: tl.constexpr):
    """Add one to words ``at``, as often as they are named."""
    if SHARED:
        tl.inline_asm_elementwise(_INCREMENT, "=r,r,r", [mine, at], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.atomic_add(mine + at, 1)


@triton.jit
def raise_word(mine, at, values, SHARED: tl.constexpr):
    """Raise word ``at`` to the largest of ``values`` [N]."""
    if SHARED:
        tl.inline_asm_elementwise(_RAISE, "=r,r,r", [mine + at * 4, values], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.atomic_max(mine + at, tl.max(values, axis=0))
