import pytest
import torch
from dsv4_kernels.codec import record_view

from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.reference import ReferenceProvider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.layer import run_stage
from dsv4bench.verify.entries import WRITES
from dsv4bench.verify.sequences import Sequences, small_shape
from dsv4bench.verify.stage_check import LONG_REQUESTS, SAMPLED_TOKENS, check_stage, check_stages, sample_tokens

SETTINGS = [("fp8", "fp8"), ("fp8", "fp4"), ("bf16", "bf16"), ("fp32", "fp32")]


def ran(kind, precision=("fp8", "fp8"), query_lens=(9, 5, 4, 3), start=(0, 3, 126, 500)):
    """Values of a layer that the reference has run."""
    dtype = torch.float32 if precision[0] == "fp32" else torch.bfloat16
    limit = max(n + q for n, q in zip(start, query_lens, strict=True))
    options = {"requests": len(start), "limit": limit, "start": start, "dtype": dtype}
    values = Sequences(small_shape(kind), kind, CachePrecision(*precision), **options).step(query_lens)
    for stage in STAGES[kind]:
        run_stage(stage, ReferenceProvider(), values)
    return values


@pytest.mark.parametrize("precision", SETTINGS, ids="+".join)
@pytest.mark.parametrize("kind", LayerKind)
def test_the_reference_is_right_in_its_own_eyes(kind, precision):
    checks = check_stages(STAGES[kind], ran(kind, precision))
    assert all(check.ok for check in checks.values())
    assert list(checks) == [stage.name for stage in STAGES[kind]]


@pytest.mark.parametrize("precision", SETTINGS, ids="+".join)
@pytest.mark.parametrize("kind", LayerKind)
def test_every_output_of_every_stage_is_looked_at(kind, precision):
    values = ran(kind, precision)
    for stage in STAGES[kind]:
        for name in stage.outputs:
            tensor = values[name]
            if tensor is None:
                continue
            values[name] = spoiled(tensor)
            assert not check_stage(stage, values).ok, f"{stage.name} with a spoiled {name}"
            values[name] = tensor


def spoiled(tensor):
    """The tensor with its middle row's first element visibly wrong."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    row = copy[len(copy) // 2]
    first = row.flatten()[:1] if row.dim() else row.view(1)
    if copy.dtype in (torch.float8_e4m3fn, torch.uint8):
        row.view(torch.uint8).flatten()[:1].bitwise_xor_(0x40)
    elif copy.dtype.is_floating_point:
        first.copy_(first * 3 + 7)
    else:
        first.copy_(first - 1)
    return copy


@pytest.mark.parametrize("precision", SETTINGS, ids="+".join)
@pytest.mark.parametrize("kind", LayerKind)
def test_every_cache_that_a_stage_writes_is_looked_at(kind, precision):
    values = ran(kind, precision)
    for stage in STAGES[kind]:
        if stage.name not in WRITES:
            continue
        cache_name, slots_name = (stage.inputs[parameter] for parameter in WRITES[stage.name])
        cache = values[cache_name]
        slots = values[slots_name][values[slots_name] >= 0]
        records = cache.view(torch.uint8) if isinstance(cache, torch.Tensor) else record_view(cache)
        at = (slots[-1] // records.shape[1], slots[-1] % records.shape[1])
        kept = records[at].clone()
        records[at] = kept.roll(4)
        assert not check_stage(stage, values).ok, f"{stage.name} with another entry in {cache_name}"
        records[at] = kept


def test_a_check_says_where_and_by_how_much():
    values = ran(LayerKind.SWA)
    values["attention_out"][11, 2] *= 1.5
    check = check_stage(next(s for s in STAGES[LayerKind.SWA] if s.name == "sparse_attention"), values)
    assert check.sentence.startswith("sparse_attention: o off by 0.5 (allowed 0.01) at token 11, head 2: element ")
    assert check.sentence.endswith("vectors are off")


def test_a_stored_accuracy_has_the_worst_error_and_the_figures():
    checks = check_stages(STAGES[LayerKind.C4A], ran(LayerKind.C4A))
    assert checks["sparse_attention"].accuracy.numbers.keys() == {"cosine", "lse_error"}
    assert checks["compress_norm_rope_insert"].accuracy.numbers["snr_db"] > 25
    assert checks["topk"].accuracy.numbers["selection_recall"] == 1


def test_a_wrong_shape_is_found_without_a_traceback():
    values = ran(LayerKind.SWA)
    values["y"] = values["y"][:, :-1]
    stage = STAGES[LayerKind.SWA][-1]
    assert not check_stage(stage, values).ok


def test_all_tokens_of_a_short_step_are_compared():
    values = ran(LayerKind.SWA)
    assert sample_tokens(values).tolist() == list(range(21))


def test_of_a_long_step_the_ends_of_requests_and_completing_tokens_are_compared():
    lens = [300, 500]
    start = torch.tensor([0, 300, 800])
    slots = torch.full((800,), -1)
    slots[127] = 5
    values = {"query_start": start, "seq_lens": torch.tensor(lens), "positions": start, "compressed_slots": slots}
    tokens = sample_tokens(values).tolist()
    assert {0, 299, 300, 799, 127} <= set(tokens)
    assert len(tokens) <= SAMPLED_TOKENS["cpu"] + 1


def test_beyond_64k_at_most_four_requests_are_compared():
    requests = 40
    start = torch.arange(requests + 1)
    values = {"query_start": start, "seq_lens": torch.full((requests,), 1 << 20), "positions": start}
    tokens = sample_tokens(values).tolist()
    assert len(tokens) == LONG_REQUESTS
    assert {0, 39} <= set(tokens)
