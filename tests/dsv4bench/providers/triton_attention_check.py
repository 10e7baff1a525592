"""A prefill step of every layer kind, attended over gathered rows and over pages: prints how far both are from right.

A program of its own, because importing kernels fixes how they will run: in Triton's interpreter, or on a GPU.
"""

import json
import sys
from dataclasses import replace

import torch
from dsv4_kernels import reference

from dsv4bench.model.shape import V4_FLASH, LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers import triton_attention
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.layer import further_arguments, prepare, run_layer, stage_arguments

SHAPE = replace(V4_FLASH, hidden_size=256, num_heads=16, o_groups=2, q_lora_rank=128, o_lora_rank=64, index_topk=64)


def errors(kind: LayerKind, batch: int, context: int, query_len: int) -> dict[str, object]:
    """Worst relative error of an output vector over pages and over rows, and workspaces that were filled."""
    workload = Workload("prefill", batch, context, query_len, "spread")
    layer = prepare(SHAPE, kind, CachePrecision(), [workload], device=DEVICE)
    values = layer.draw(workload, 1)
    stages = STAGES[kind]
    attention = next(i for i, stage in enumerate(stages) if stage.name == "sparse_attention")
    plain = load_provider("reference")
    run_layer(stages[:attention], {stage.name: plain for stage in stages}, values)
    arguments = stage_arguments(stages[attention], values)
    method = load_provider("triton").sparse_attention
    further = further_arguments(method, stages[attention], values)
    want, want_lse = reference.sparse_attention(**(arguments | {"q": arguments["q"].float()}))
    filled: list[triton_attention.Workspace] = []

    def pays(q: torch.Tensor, tiles: int, workspace: triton_attention.Workspace) -> bool:
        filled.append(workspace)
        return True

    triton_attention.pays = pays
    out, lse = method(**arguments, **further)
    over_pages, _ = method(**arguments)
    vectors = [((o.float() - want).norm(dim=-1) / want.norm(dim=-1)).max().item() for o in (over_pages, out)]
    off = (lse - want_lse).abs().max().item()
    return {"pages": vectors[0], "rows": vectors[1], "lse": off, "filled": len(filled)}


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
print(json.dumps(errors(LayerKind(sys.argv[1]), *map(int, sys.argv[2:]))))
