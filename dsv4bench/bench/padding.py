"""What a provider computes beyond what was asked: query heads that its kernels are padded to."""

from dataclasses import replace
from typing import Any

from dsv4bench.bench.roofline import cost_of
from dsv4bench.scenario.case import Case


def padding(provider: object, stage: str, case: Case) -> dict[str, Any]:
    """Padded heads and FLOPs of a stage, for a row's ``extra``; empty where nothing is padded.

    A provider that pads has a method ``run_heads(stage, num_heads)``. The row's own ``flops`` stay the effective ones.
    """
    run_heads = getattr(provider, "run_heads", None)
    if run_heads is None:
        return {}
    heads = run_heads(stage, case.shape.num_heads)
    if heads == case.shape.num_heads:
        return {}
    padded = replace(case, shape=replace(case.shape, num_heads=heads))
    return {"padded_heads": heads, "padded_flops": cost_of(padded, stage).flops}
