"""What is deployed, and how: the inputs of every engine's accounting."""

from dataclasses import dataclass, replace

from dsv4bench.errors import UserError
from dsv4bench.model.shape import PRESETS, LayerKind, ModelShape
from dsv4bench.scenario.sizes import LARGEST

_BOUNDS = {
    "max_num_batched_tokens": (1, LARGEST), "in_flight_tokens": (1, LARGEST), "mtp": (0, LARGEST), "tp": (1, LARGEST),
    "dp": (1, LARGEST), "pp": (1, LARGEST), "dcp": (1, LARGEST), "c4_state_rows": (1, 128), "c128_state_rows": (0, 128),
    "window_cells": (1, LARGEST),
}  # fmt: skip
"""Least and most of the fields that are counts. A row of state for every token of the window is more than any needs."""


@dataclass(frozen=True)
class Deployment:
    """A model served by an engine. Engines read the fields they have a notion of.

    Attributes:
        shape: the model; nothing here depends on its query heads.
        main: precision of main, window or latent entries.
        indexer: precision of indexer entries.
        layout: kernel library, ``flashmla`` or ``flashinfer`` (vLLM).
        max_model_len: longest request the engine is started for.
        max_num_batched_tokens: tokens of a scheduler step.
        async_scheduling: whether a second step is in flight (vLLM).
        in_flight_tokens: overrides what follows from the two; None to derive it.
        mtp: draft tokens per step; above 0 one MTP layer is served too.
        tp: tensor parallel size; the cache is replicated over it.
        dp: data parallel size; each rank has a cache of its own.
        pp: pipeline parallel size; layers are split over it.
        dcp: decode context parallel size; compressed entries are split over it.
        swa_ratio: window tokens per full token (SGLang's ``swa_full_tokens_ratio``).
        state: precision of the compressor state, ``bf16`` or ``fp32`` (SGLang); None for the version's default.
        c4_state_rows: c4 state rows per 128 window tokens (SGLang); None for the version's default.
        c128_state_rows: c128 state rows per window token (SGLang); None for the version's default.
        fixed_state_bytes: request-scoped state that SGLang takes off its pool first.
        cache_type: ``f16`` or ``q8_0`` (llama.cpp).
        window_cells: cells of the sliding-window cache (llama.cpp); None to derive them from the window.
    """

    shape: ModelShape
    main: str = "fp8"
    indexer: str = "fp8"
    layout: str = "flashmla"
    max_model_len: int = 1_048_576
    max_num_batched_tokens: int = 8192
    async_scheduling: bool = False
    in_flight_tokens: int | None = None
    mtp: int = 0
    tp: int = 1
    dp: int = 1
    pp: int = 1
    dcp: int = 1
    swa_ratio: float = 0.1
    state: str | None = None
    c4_state_rows: int | None = None
    c128_state_rows: int | None = None
    fixed_state_bytes: int = 0
    cache_type: str = "f16"
    window_cells: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                limit = f"at least {least}" if value < least else f"at most {most:,}"
                raise UserError(f"--{name.replace('_', '-')} must be {limit}, got {value:,}")
        if self.mtp and not self.shape.mtp_layers:
            raise UserError(f"--mtp {self.mtp}: {self.shape.name} has no MTP layer")
        if self.pp > len(self.shape.layers):
            raise UserError(f"--pp {self.pp} is more than the {len(self.shape.layers)} layers of {self.shape.name}")
        if self.tp % self.dcp:
            raise UserError(f"--dcp {self.dcp} must divide --tp {self.tp}: it shares the tensor parallel ranks")
        if not 0 < self.swa_ratio <= 1:
            raise UserError(f"--swa-ratio must be above 0 and at most 1, got {self.swa_ratio}")

    @property
    def known_as(self) -> str:
        """Name of the preset whose cache is the same, however the model was loaded; "" if there is none."""
        mine = (self.shape.family, self.shape.layers, self.shape.sliding_window)
        same = (p.name for p in PRESETS.values() if (p.family, p.layers, p.sliding_window) == mine)
        return next(same, "")

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """Kind of every layer that has a cache: the backbone, and one MTP layer if drafts are made."""
        return self.shape.layers + (self.shape.mtp_layers[:1] if self.mtp else ())

    @property
    def stages(self) -> tuple[range, ...]:
        """Layers of each pipeline stage: the remainder goes to the stages before the last, drafts to the last."""
        size, rest = divmod(len(self.shape.layers), self.pp)
        sizes = [size + (self.pp - 1 - rest <= stage < self.pp - 1) for stage in range(self.pp)]
        sizes[-1] += len(self.layers) - len(self.shape.layers)
        starts = [sum(sizes[:stage]) for stage in range(self.pp)]
        return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))

    @property
    def decode_tokens(self) -> int:
        """Tokens of a request that are in flight while it decodes: one, and its drafts."""
        return 1 + self.mtp

    def at(self, max_model_len: int) -> "Deployment":
        """The same deployment for requests of another length."""
        return replace(self, max_model_len=max_model_len)
