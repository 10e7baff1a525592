"""A V4 and a V3.2 shape with real head dimensions and little else, so that a layer runs in milliseconds."""

from dataclasses import replace

import pytest

from dsv4bench.model.shape import V3_2, V4_FLASH, LayerKind, ModelShape


@pytest.fixture(scope="session")
def small_shape():
    def _shape(kind: LayerKind) -> ModelShape:
        base = V3_2 if kind is LayerKind.DSA else V4_FLASH
        groups = 0 if kind is LayerKind.DSA else 2
        return replace(
            base, hidden_size=256, num_heads=16, o_groups=groups, q_lora_rank=128, o_lora_rank=64, index_topk=64
        )

    return _shape
