"""What this very card reaches, measured once per run: device copy, bf16 and fp8 matrix products, on random data."""

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from dsv4bench.results.manifest import Ceilings

if TYPE_CHECKING:
    import torch

COPY_BYTES = 2 * 2**30
MATRIX = 8192
REPEATS = 5


def measure_ceilings(device: str) -> Ceilings:
    """Medians of a few large operations, about 0.2 s on an H200. fp8 is ``None`` where the card has none."""
    import torch

    a = torch.randn((MATRIX, MATRIX), device=device, dtype=torch.bfloat16)
    b = torch.randn((MATRIX, MATRIX), device=device, dtype=torch.bfloat16)
    flops = 2 * MATRIX**3
    return Ceilings(
        copy_bytes_per_second=_copy(device),
        bf16_flops_per_second=flops / _seconds(lambda: a @ b),
        fp8_flops_per_second=_fp8(a, b, flops),
    )


def _copy(device: str) -> float:
    import torch

    source = torch.randint(-128, 127, (COPY_BYTES,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(lambda: target.copy_(source))


def _fp8(a: "torch.Tensor", b: "torch.Tensor", flops: int) -> float | None:
    import torch

    one = torch.ones((), device=a.device)
    try:
        left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        return flops / _seconds(
            lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        )
    except RuntimeError:
        return None


def _seconds(call: Callable[[], object]) -> float:
    from dsv4bench.bench.timers.events import EventTimer

    return median(EventTimer().time([call], 2, REPEATS, None).seconds)
