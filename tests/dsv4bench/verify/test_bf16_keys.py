"""Latents attended by bf16 keys are a deviation with a name; anything else that is off is not."""

from typing import Any

import pytest
import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import record_view, write_entries
from dsv4_kernels.formats import entry_format

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.verify.bf16_keys import attend_bf16_keys, bf16_keys
from dsv4bench.verify.suite import Status, run_row, select_rows
from dsv4bench.verify.trial import Setting


def arguments(scales: list[float], entries: int = 3) -> dict[str, Any]:
    """A call of sparse attention over latents whose four scales were multiplied by ``scales``."""
    generator = torch.Generator().manual_seed(7)
    format = entry_format("latent", "fp8")
    cache = PagedCache(torch.zeros((2, format.page_bytes(64)), dtype=torch.uint8), format, 64)
    slots = torch.arange(60, 60 + entries)
    write_entries(cache, slots, torch.randn(entries, 576, generator=generator))
    records = record_view(cache)[slots // 64, slots % 64]
    factors = torch.tensor(scales)
    records[:, 512:528] = (records[:, 512:528].contiguous().view(torch.float32) * factors).view(torch.uint8)
    record_view(cache)[slots // 64, slots % 64] = records
    indices = torch.full((2, 128), -1, dtype=torch.int32)
    indices[:, :entries] = slots.int()
    nothing = dict.fromkeys(("window_cache", "window_indices", "window_lens", "sink"))
    return nothing | {
        "q": 3 * torch.randn(2, 16, 576, generator=generator).to(torch.bfloat16),
        "compressed_cache": cache,
        "compressed_indices": indices,
        "compressed_lens": torch.tensor([entries, 1], dtype=torch.int32),
        "softmax_scale": 576**-0.5,
    }


def test_powers_of_two_lose_nothing_in_bf16() -> None:
    call = arguments([1, 2, 0.5, 4])
    for rounded, exact in zip(attend_bf16_keys(call), reference.sparse_attention(**call), strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0, atol=0)


def test_scales_are_rounded_before_keys() -> None:
    call = arguments([1.004] * 4)
    cache, slot = call["compressed_cache"], torch.tensor([60])
    record = record_view(cache)[0, 60]
    codes = record[:512].view(torch.float8_e4m3fn).float()
    scales = record[512:528].clone().view(torch.float32).to(torch.bfloat16).float()
    wanted = (codes.view(4, 128) * scales[:, None]).to(torch.bfloat16).flatten()
    assert torch.equal(bf16_keys(cache, slot)[0, :512], wanted)
    assert not bf16_keys(cache, torch.tensor([-1])).any()


class Bf16Keys:
    """Attention over bf16 keys, of latents that are stored with scales as they are."""

    name = "bf16-keys"
    sparse_attention = staticmethod(lambda **call: attend_bf16_keys(call))

    def supports(self, need: Need) -> Support:
        return SUPPORTED

    def latent_insert(self, *, cache: PagedCache, slots: torch.Tensor, **rest: Any) -> None:
        reference.latent_insert(cache=cache, slots=slots, **rest)
        where = slots[slots >= 0]
        records = record_view(cache)[where // 64, where % 64]
        scale = rest["kv"][slots >= 0].float().unflatten(-1, (4, 128)).abs().amax(-1).clamp_min(1e-4) / 448
        codes = (rest["kv"][slots >= 0].float().unflatten(-1, (4, 128)) / scale.unsqueeze(-1)).flatten(1)
        records[:, :512] = codes.to(torch.float8_e4m3fn).view(torch.uint8)
        records[:, 512:528] = scale.contiguous().view(torch.uint8)
        record_view(cache)[where // 64, where % 64] = records


class Bf16KeysAndMore(Bf16Keys):
    """The same, and an LSE that is a little off."""

    @staticmethod
    def sparse_attention(**call: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = attend_bf16_keys(call)
        return out, lse + 0.02


@pytest.mark.parametrize(
    ("provider", "allowed", "status"),
    [
        (Bf16Keys(), frozenset(), Status.FAIL),
        (Bf16Keys(), frozenset({"bf16-keys"}), Status.DEVIATION),
        (Bf16KeysAndMore(), frozenset({"bf16-keys"}), Status.FAIL),
    ],
)
def test_bf16_keys_pass_by_name_alone_and_hide_no_other_fault(provider, allowed, status) -> None:
    outcome = run_row(provider, select_rows(["garbage"])[0], Setting(LayerKind.DSA, quick=True), allow=allowed)
    assert outcome.status is status, outcome.reason
    if status is Status.FAIL and not allowed:
        assert "--allow bf16-keys" in outcome.reason
