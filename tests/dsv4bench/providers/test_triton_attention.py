import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from dsv4bench.providers.step import Split
from dsv4bench.providers.triton_attention import WORKSPACE_ROWS, pays, workspace_of

SCRIPT = Path(__file__).with_name("triton_attention_check.py")
ROOT = SCRIPT.parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["swa", "c4a", "c128a"])
@pytest.mark.parametrize(("batch", "context", "query_len"), [(1, 320, 12), (2, 330, 10)])
def test_gathered_rows_give_what_the_pages_give(kind, batch, context, query_len):
    extra = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels"))), **extra}
    command = [sys.executable, SCRIPT, kind, *map(str, (batch, context, query_len))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["filled"] == 1
    assert found["rows"] < 1e-2
    assert found["pages"] < 1e-2
    assert found["lse"] < 2e-3


def test_a_workspace_holds_the_longest_request_in_whole_pages():
    split = Split(query_lens=(100, 300), seq_lens=(1000, 300), decodes=0)
    workspace = workspace_of(split, 4)
    assert workspace.compressed == 256  # 250 entries
    assert workspace.window == 300
    assert workspace.rows == 256 + 320
    assert workspace.entries == 250 + 227 + 75 + 300
    assert workspace_of(split, 0).compressed == 0


def test_nothing_is_gathered_without_hopper_or_into_more_than_the_workspace(monkeypatch):
    q = torch.empty((8192, 64, 512), dtype=torch.bfloat16, device="meta")
    few, many = (workspace_of(Split((8192 // n,) * n, (65_536,) * n, 0), 4) for n in (1, 64))
    assert many.requests * many.rows > WORKSPACE_ROWS
    monkeypatch.setattr("dsv4bench.providers.triton_attention.on_hopper", lambda: False)
    assert not pays(q, 10, few)
    monkeypatch.setattr("dsv4bench.providers.triton_attention.on_hopper", lambda: True)
    assert pays(q, 10, few)
    assert not pays(q, 10, many)
    assert not pays(torch.empty((8192, 64, 516), dtype=torch.bfloat16, device="meta")[..., :512], 10, few)
