"""A scenario over a V4 model with real head dimensions and little else, so that a layer runs in milliseconds."""

import json
from pathlib import Path

from dsv4bench.scenario.schema import Scenario

CONFIG = json.loads((Path(__file__).parents[2] / "data" / "configs" / "v4_flash.json").read_text())
SMALL = {
    "hidden_size": 256,
    "num_attention_heads": 16,
    "o_groups": 2,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "index_n_heads": 8,
    "index_topk": 64,
}


def small_config(folder: Path) -> str:
    path = folder / "small.json"
    path.write_text(json.dumps(CONFIG | SMALL))
    return str(path)


def small_scenario(folder: Path, **changes) -> Scenario:
    fields = {
        "name": "small",
        "model": small_config(folder),
        "layers": "swa",
        "workload": {"context": 256},
        "timing": {"rounds": 2, "iterations": 1, "warmup": 0},
    }
    return Scenario.model_validate(fields | changes)
