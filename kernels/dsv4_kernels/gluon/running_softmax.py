"""A softmax that two consumer warpgroups keep together: each in turn weighs a tile, and the other adopts its maximum.

Scores of a tile are [64 heads, 64 entries]; outputs are accumulated in halves of 256 columns.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from dsv4_kernels.gluon.items import HEADS

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
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


@gluon.jit
def weigh(scores, bias, scale, top):
    """Softmax weights of a tile relative to the new running maximum, that maximum, and what the old one shrinks to."""
    scores = scores * scale + gl.expand_dims(bias.load(gl.SliceLayout(0, S_MMA)), 0)
    new_top = gl.maximum(top, gl.max(scores, axis=1))
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    return gl.exp2(scores - gl.expand_dims(shift, 1)), new_top, gl.exp2(top - shift)


@gluon.jit
def sink_logits(sink, head, num_heads, HAS_SINK: gl.constexpr):
    """The heads' sinks, asked for long before they are needed."""
    heads = head + gl.arange(0, HEADS, layout=S_ROWS)
    logit = gl.full([HEADS], 0.0, gl.float32, S_ROWS)
    if HAS_SINK:
        logit = gl.load(sink + heads, mask=heads < num_heads, other=0.0)
    return logit
