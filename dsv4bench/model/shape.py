"""Model shapes: the numbers of an attention stack, frozen, and the presets that ship."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import gcd, log

from dsv4bench.errors import UserError


class LayerKind(StrEnum):
    """The kinds of attention layer."""

    SWA = "swa"
    """Sliding window only (compress ratio 0)."""
    C4A = "c4a"
    """Overlapping windows of 8 tokens at stride 4 become one entry; an indexer selects the top-k entries."""
    C128A = "c128a"
    """128 tokens become one entry; every entry is attended."""
    DSA = "dsa"
    """V3.2: a latent per token; an indexer selects the top-k tokens."""

    @property
    def ratio(self) -> int:
        """Tokens per compressed entry: 4, 128, 1 for dsa (every token has an entry), 0 where nothing is compressed."""
        return {"swa": 0, "c4a": 4, "c128a": 128, "dsa": 1}[self.value]

    @property
    def has_indexer(self) -> bool:
        """Whether entries are selected by an indexer."""
        return self in (LayerKind.C4A, LayerKind.DSA)

    @property
    def compresses(self) -> bool:
        """Whether the layer runs a compressor."""
        return self in (LayerKind.C4A, LayerKind.C128A)


KIND_OF_RATIO = {0: LayerKind.SWA, 1: LayerKind.SWA, 4: LayerKind.C4A, 128: LayerKind.C128A}
"""Layer kind by the ``compress_ratios`` value of a V4 config (vLLM stores 0 as 1)."""


@dataclass(frozen=True)
class Rope:
    """A rotary table: interleaved pairs, fp32 angles.

    Attributes:
        theta: base of the frequencies.
        factor: YaRN interpolation factor; 1 means no YaRN.
        original_positions: positions the model was trained on before YaRN.
        beta_fast: rotations above which a frequency is kept.
        beta_slow: rotations below which a frequency is interpolated.
        mscale: attention magnitude; V3.2 multiplies its softmax scale by ``(0.1 * mscale * ln(factor) + 1) ** 2``,
            V4 has none (0).
    """

    theta: float
    factor: float = 1.0
    original_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0


@dataclass(frozen=True)
class ModelShape:
    """The attention dimensions of a model.

    Attributes:
        name: preset name or the path it was read from.
        family: ``v4`` or ``v3.2``.
        hidden_size: width of the residual stream.
        num_heads: query heads on this rank.
        head_dim: query/key dims per head (V4 512; V3.2 192 = 128 nope + 64 rope, before absorption).
        rope_dim: dims of a head that are rotated.
        q_lora_rank: width of the query latent.
        kv_dim: width of the cached vector (V4 512; V3.2 576 = 512 latent + 64 rope).
        value_dim: width of what attention returns per head (512 for both).
        v_head_dim: V3.2 value dims after up-projection; 0 for V4.
        o_groups: groups of the output projection on this rank; 0 for V3.2.
        o_lora_rank: rank of the grouped output projection; 0 for V3.2.
        index_heads: indexer query heads (replicated over tensor parallel ranks).
        index_dim: indexer head dims.
        index_topk: entries an indexer selects.
        sliding_window: tokens of the window, the token itself included; 0 for V3.2.
        max_positions: longest sequence the model declares.
        rms_norm_eps: epsilon of every RMS norm.
        window_rope: table of swa layers (V4) or of all layers (V3.2).
        compressed_rope: table of c4a and c128a layers.
        layers: kind of each backbone layer.
        mtp_layers: kinds of the trailing multi-token-prediction layers, which are not part of ``layers``.
    """

    name: str
    family: str
    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    kv_dim: int
    value_dim: int
    v_head_dim: int
    o_groups: int
    o_lora_rank: int
    index_heads: int
    index_dim: int
    index_topk: int
    sliding_window: int
    max_positions: int
    rms_norm_eps: float
    window_rope: Rope
    compressed_rope: Rope
    layers: tuple[LayerKind, ...]
    mtp_layers: tuple[LayerKind, ...]

    @property
    def is_v4(self) -> bool:
        """Whether this is a V4 model."""
        return self.family == "v4"

    @property
    def softmax_scale(self) -> float:
        """Factor on q·k: head_dim ** -0.5, for V3.2 times the squared YaRN magnitude."""
        return float(self.head_dim**-0.5 * self.window_rope_magnitude**2)

    @property
    def window_rope_magnitude(self) -> float:
        """YaRN attention magnitude of V3.2; exactly 1 for V4."""
        rope = self.window_rope
        if rope.mscale == 0 or rope.factor <= 1:
            return 1.0
        return 0.1 * rope.mscale * log(rope.factor) + 1.0

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct layer kinds in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    def count(self, kind: LayerKind, *, mtp: bool = False) -> int:
        """Layers of a kind, with the MTP layers if asked."""
        return (self.layers + (self.mtp_layers if mtp else ())).count(kind)

    def rope_of(self, kind: LayerKind) -> Rope:
        """The rotary table a layer of this kind uses for everything it rotates."""
        return self.compressed_rope if kind.compresses else self.window_rope

    def entries(self, kind: LayerKind, context: int) -> int:
        """Compressed (or, for dsa, per-token) entries after ``context`` tokens."""
        return context // kind.ratio if kind.ratio else 0

    def shard(self, tp: int) -> "ModelShape":
        """The shape of one tensor-parallel rank: heads and output groups divided, everything else replicated.

        Raises:
            UserError: heads or groups do not divide.
        """
        if tp < 1 or self.num_heads % tp or self.o_groups % tp:
            most = gcd(self.num_heads, self.o_groups)
            raise UserError(
                f"tp {tp} does not divide {self.num_heads} heads and {self.o_groups} output groups of {self.name}; "
                f"use {most} or a divisor of it"
            )
        return replace(self, num_heads=self.num_heads // tp, o_groups=self.o_groups // tp)


_C4A, _C128A, _SWA, _DSA = LayerKind.C4A, LayerKind.C128A, LayerKind.SWA, LayerKind.DSA
_V4_YARN = Rope(theta=160000.0, factor=16.0, original_positions=65536)

V4_PRO = ModelShape(
    name="v4-pro", family="v4", hidden_size=7168, num_heads=128, head_dim=512, rope_dim=64, q_lora_rank=1536,
    kv_dim=512, value_dim=512, v_head_dim=0, o_groups=16, o_lora_rank=1024, index_heads=64, index_dim=128,
    index_topk=1024, sliding_window=128, max_positions=1_048_576, rms_norm_eps=1e-6, window_rope=Rope(10000.0),
    compressed_rope=_V4_YARN, layers=(_C128A, _C128A, *(_C4A, _C128A) * 29, _C4A), mtp_layers=(_SWA,),
)  # fmt: skip
"""DeepSeek-V4-Pro: 30 c4a and 31 c128a layers, one swa MTP layer (published config.json)."""

V4_FLASH = ModelShape(
    name="v4-flash", family="v4", hidden_size=4096, num_heads=64, head_dim=512, rope_dim=64, q_lora_rank=1024,
    kv_dim=512, value_dim=512, v_head_dim=0, o_groups=8, o_lora_rank=1024, index_heads=64, index_dim=128,
    index_topk=512, sliding_window=128, max_positions=1_048_576, rms_norm_eps=1e-6, window_rope=Rope(10000.0),
    compressed_rope=_V4_YARN, layers=(_SWA, _SWA, *(_C4A, _C128A) * 20, _C4A), mtp_layers=(_SWA,),
)  # fmt: skip
"""DeepSeek-V4-Flash: 2 swa, 21 c4a and 20 c128a layers, one swa MTP layer (published config.json)."""

V3_2 = ModelShape(
    name="v3.2", family="v3.2", hidden_size=7168, num_heads=128, head_dim=192, rope_dim=64, q_lora_rank=1536,
    kv_dim=576, value_dim=512, v_head_dim=128, o_groups=0, o_lora_rank=0, index_heads=64, index_dim=128,
    index_topk=2048, sliding_window=0, max_positions=163_840, rms_norm_eps=1e-6,
    window_rope=Rope(10000.0, factor=40.0, original_positions=4096, mscale=1.0),
    compressed_rope=Rope(10000.0, factor=40.0, original_positions=4096, mscale=1.0),
    layers=(_DSA,) * 61, mtp_layers=(_DSA,),
)  # fmt: skip
"""DeepSeek-V3.2: 61 dsa layers (published config.json)."""

PRESETS = {shape.name: shape for shape in (V4_PRO, V4_FLASH, V3_2)}
"""The shapes that ship, by name."""
