"""``run --weights DIR --layer N``: a layer of a checkpoint made here, measured for real on the CPU."""

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from dsv4bench.cli.main import build
from dsv4bench.errors import UserError
from dsv4bench.model.config import load_shape
from dsv4bench.model.shape import LayerKind
from dsv4bench.results.run_directory import read_run
from dsv4bench.stack.weights import make_weights
from tests.dsv4bench.bench.small import small_config
from tests.dsv4bench.cli.test_run import cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    small_config(folder)
    shape = load_shape(str(folder / "small.json"))
    weights = make_weights(shape, LayerKind.SWA, seed=9)
    rank = shape.q_lora_rank
    named = {
        "wq_a.weight": weights["w_qkv"][:rank], "wkv.weight": weights["w_qkv"][rank:],
        "q_norm.weight": weights["q_norm_weight"], "kv_norm.weight": weights["kv_norm_weight"],
        "wq_b.weight": weights["w_q"], "attn_sink": weights["sink"],
        "wo_a.weight": weights["w_o_a"].flatten(0, 1), "wo_b.weight": weights["w_o_b"],
    }  # fmt: skip
    (folder / "checkpoint").mkdir()
    layer = shape.layers.index(LayerKind.SWA)
    tensors = {f"layers.{layer}.attn.{name}": tensor.contiguous() for name, tensor in named.items()}
    save_file(tensors, folder / "checkpoint/model.safetensors")
    (folder / "mine.yaml").write_text(
        "name: mine\nmodel: small.json\nworkload: {context: 256}\ntiming: {rounds: 1, iterations: 1, warmup: 0}\n"
    )
    return folder


def test_only_the_layer_of_the_checkpoint_is_measured_and_its_row_says_so(folder):
    words = ["--device", "cpu", "--out", "out", "--weights", "checkpoint", "--layer", "0"]
    done = cli("run", "mine.yaml", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    (row,) = read_run(folder / "out").rows
    assert row.case["layer"] == "swa"
    assert row.case["checkpoint"] == "checkpoint#0"
    assert "--weights checkpoint --layer 0" in row.repro


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weights", "checkpoint"], "--weights DIR and --layer N go together"),
        (["--layer", "0"], "--weights DIR and --layer N go together"),
        (["--weights", "nowhere", "--layer", "0"], "--weights nowhere: no such directory"),
        (["--weights", ".", "--layer", "0"], "--weights .: no .safetensors file in it"),
        (
            ["--weights", "checkpoint", "--layer", "0", "--set", "model=[small.json, v3.2]"],
            "a checkpoint is of one model, and model names small.json, v3.2; name one",
        ),
        (["--weights", "checkpoint", "--layer", "99"], "weights.layer 99: small.json has layers 0 to"),
    ],
)
def test_wrong_flags_are_one_sentence(folder, words, message, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(build("run"), ["run", "mine.yaml", "--device", "cpu", "--out", "wrong", *words])
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)
