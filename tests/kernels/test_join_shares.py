import math

import pytest
import torch

pytest.importorskip("triton")
import compile_report
from dsv4_kernels.triton.join_shares import join_shares

ON_GPU = torch.cuda.is_available()


def arguments(splits: int, heads: int, share: torch.dtype, device: str) -> dict[str, object]:
    return {
        "partial": torch.randn(3, splits, heads, 512, device=device).to(share),
        "partial_lse": torch.randn(3, splits, heads, device=device), "sink": torch.randn(heads, device=device),
        "out": torch.full((3, heads, 512), math.nan, dtype=torch.bfloat16, device=device),
        "lse": torch.full((3, heads), math.nan, device=device),
    }  # fmt: skip


@pytest.mark.parametrize("share", [torch.float16, torch.float32])
@pytest.mark.parametrize("splits", [2, 7, 22, 128])
def test_a_join_takes_no_shared_memory_and_spills_nothing(splits, share):
    with compile_report.compiled_kernels(90) as kernels:
        join_shares(**arguments(splits, 64, share, "meta"), early=True)
    (resources,) = (compile_report.resources(kernel, 90) for kernel in kernels)
    assert (resources.shared, resources.spills) == (0, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("share", [torch.float16, torch.float32])
@pytest.mark.parametrize("splits", [2, 7, 22, 128])
def test_shares_are_weighed_by_what_they_saw(splits, share, early):
    step = arguments(splits, 8, share, "cuda")
    step["partial_lse"][1, ::2] = -math.inf
    step["partial_lse"][2] = -math.inf
    step["partial"][2] = 0.0
    join_shares(**step, early=early)
    lse = step["partial_lse"].double()
    want_lse = lse.logsumexp(1)
    weights = (lse - torch.logaddexp(want_lse, step["sink"].double())[:, None]).exp()
    want = (weights[..., None] * step["partial"].double()).sum(1)
    torch.testing.assert_close(step["lse"].double(), want_lse, rtol=0, atol=1e-5)
    torch.testing.assert_close(step["out"].double(), want, rtol=2**-8, atol=1e-3)
