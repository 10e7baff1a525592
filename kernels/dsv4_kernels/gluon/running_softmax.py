"""A softmax that two consumer warpgroups keep together: each in turn weighs a tile, and the other adopts its maximum.

Scores of a tile are [64 heads, 64 entries]; outputs are accumulated in halves of 256 columns.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

S_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
S_ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])))
O_WORDS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8], [0, 16], [0, 32], [0, 64]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 128],
    )
)  # fmt: skip
"""Output pairs [64, 128] where the accumulator holds them."""


@gluon.jit
def adopt(theirs, top):
    """The other consumer's running maximum, and what ours shrinks to."""
    new_top = theirs.load(S_ROWS)
    return new_top, gl.exp2(top - gl.where(new_top == float("-inf"), 0.0, new_top))


@gluon.jit
def shrink(acc, keep, ROWS: gl.constexpr):
    """The accumulated output under a new maximum; ``ROWS`` is the layout of its rows."""
    return acc * gl.expand_dims(gl.convert_layout(keep, ROWS), 1)
