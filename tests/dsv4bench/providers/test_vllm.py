"""The vLLM provider where vLLM isn't: its table, its reasons, its views, and its translation on stand-in functions."""

import logging
import sys
import weakref
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.base import Need, further_parameters, implemented_stages
from dsv4bench.providers.eager import EagerProvider
from dsv4bench.providers.registry import list_providers, load_provider
from dsv4bench.providers.step import Split, following, once, renew, split_step
from dsv4bench.providers.vllm import VllmProvider, indexer, needs
from dsv4bench.providers.vllm.attention import latent_rows, with_padding
from dsv4bench.providers.vllm.library import (
    Library,
    MissingError,
    check_signature,
    operator_parameters,
    quiet_import,
)
from dsv4bench.providers.vllm.needs import FUNCTIONS, PRODUCTS, functions_of, problems
from dsv4bench.providers.vllm.pages import by_entry, by_head, require_dense
from dsv4bench.providers.vllm.projection import groups_outermost
from dsv4bench.providers.vllm.prompts import chunks_of
from dsv4bench.providers.vllm.release import FORMS, KNOWN, Form, forms_for, release_of
from dsv4bench.providers.vllm.selection import decode_kernel
from dsv4bench.scenario.case import CachePrecision, WeightChoice
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.graph import refill
from dsv4bench.stack.layer import prepare, run_stage
from dsv4bench.verify.entries import WRITES
from dsv4bench.verify.rows import attending, numerics
from dsv4bench.verify.rows.padding import padding_tokens
from dsv4bench.verify.sequences import small_shape
from dsv4bench.verify.stage_check import check_stage
from dsv4bench.verify.trial import Setting, Trial
from tests.dsv4bench.providers import vllm_double

DEEP_GEMM_MISSING = "AttributeError: module 'vllm.utils.deep_gemm' has no attribute 'get_num_sms'"
ABSENT = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")


def need(*stages: str, kind: LayerKind = LayerKind.C4A, **changes: Any) -> Need:
    base = Need(kind=kind, stages=stages, device="cuda", main="fp8", indexer="fp8", num_heads=64, phase="decode")
    return replace(base, **changes)


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the provider asks a GPU for, and one thread: more only get into each other's way."""
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        card = type("Card", (), {"multi_processor_count": 4})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        monkeypatch.setattr(needs, "capability", lambda: (9, 0))


def provider(variant: str = "", version: str = "0.26.0") -> VllmProvider:
    return VllmProvider(variant, Library(version, vllm_double.modules().__getitem__))


# where vLLM isn't ----------------------------------------------------------------------------------------------------
@ABSENT
def test_without_vllm_it_loads_and_says_why_it_can_run_nothing() -> None:
    support = VllmProvider("", Library()).supports(need("topk"))
    assert not support.ok
    assert support.reason == "vLLM is not installed here: pip install '.[vllm]' in a checkout of dsv4bench"


@ABSENT
def test_a_stage_called_without_vllm_is_unsupported_not_a_crash() -> None:
    with pytest.raises(NotImplementedError, match="not installed"):
        VllmProvider().topk(logits=torch.zeros(1, 8), candidate_lens=torch.ones(1, dtype=torch.int32), k=4)


def test_listing_it_imports_nothing_of_vllm() -> None:
    infos = {info.name: info for info in list_providers()}
    assert "sparse_attention" in infos["vllm"].stages
    assert "vllm" not in sys.modules


def test_variants_are_named_and_others_refused() -> None:
    assert [load_provider(name).name for name in ("vllm", "vllm:triton", "vllm:cute")] == [
        "vllm", "vllm:triton", "vllm:cute",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"no variant 'cuda'; known: vllm, vllm:triton, vllm:cute"):
        load_provider("vllm:cuda")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cpu"}, "run on cuda, not on cpu"),
        ({"main": "bf16"}, "fp8, not bf16"),
        ({"indexer": "fp4"}, "fp8 indexer cache, not fp4"),
        ({"num_heads": 256}, "up to 128 query heads, not 256"),
    ],
)
def test_cases_that_it_can_never_run_have_a_reason(changes: dict[str, Any], reason: str) -> None:
    assert reason in provider().supports(need("sparse_attention", **changes)).reason


def test_v32_prefill_is_refused_but_its_decode_is_not() -> None:
    case = need("sparse_attention", kind=LayerKind.DSA, phase="prefill")
    assert "not its prefill" in provider().supports(case).reason


def test_it_has_every_stage_of_every_layer_but_the_products_that_are_bf16_in_every_model() -> None:
    have = implemented_stages(provider())
    lacking = {stage.name for stages in STAGES.values() for stage in stages} - set(have)
    assert lacking == {
        "compressor_projection", "indexer_compressor_projection", "indexer_weights_projection",
        "indexer_key_projection", "query_absorb", "value_up_projection",
    }  # fmt: skip
    assert set(have) == set(FUNCTIONS)


# what is installed ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("version", "release"),
    [("0.26.0", "0.26"), ("0.26.3", "0.26"), ("0.33.0+cu130", "0.33"), ("0.27.0", ""), ("0.2.6", ""), ("1.0", "")],
)
def test_a_version_belongs_to_a_known_release_or_to_none(version: str, release: str) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("release", KNOWN)
def test_every_function_has_one_form_per_known_release(release: str) -> None:
    assert all(len(forms_for(name, release)) == 1 for name in FORMS)


def test_every_stage_needs_only_functions_of_the_table() -> None:
    variants = ("", "triton", "cute")
    for kind, variant, phase in product(LayerKind, variants, ("decode", "prefill")):
        for stage in STAGES[kind]:
            if stage.name in FUNCTIONS:
                assert set(functions_of(stage.name, kind, variant, phase)) <= set(FORMS)


def test_a_known_release_is_called_in_its_own_form() -> None:
    assert provider(version="0.26.0")._library.takes("ragged_logits", "clean_logits")
    with pytest.raises(MissingError, match="lacks max_seqlen_k and also needs clean_logits"):
        provider(version="0.33.0")._library.function("ragged_logits")


def test_an_unknown_release_says_so_and_runs_what_it_kept() -> None:
    library = provider(version="0.40.1")._library
    assert "not among the known releases (0.26, 0.33)" in library.note
    assert library.function("ragged_logits") is vllm_double.fp8_fp4_mqa_logits
    assert library.takes("ragged_logits", "clean_logits")


def test_what_an_unknown_release_lost_is_missing_with_all_that_was_tried() -> None:
    modules = vllm_double.modules()
    del modules[vllm_double.OPS].fused_q_kv_rmsnorm
    library = Library("0.40.1", modules.__getitem__)
    with pytest.raises(MissingError) as caught:
        library.function("qkv_norm")
    text = str(caught.value)
    assert "vllm.models.common.ops.fused_qk_rmsnorm can't be imported: KeyError" in text
    assert f"there is no fused_q_kv_rmsnorm in {vllm_double.OPS}" in text
    assert "not among the known releases" in text


def test_one_part_that_fails_to_import_leaves_the_other_stages_alone() -> None:
    modules = vllm_double.modules()

    def load(name: str) -> ModuleType:
        if "cutedsl" in name:
            raise ImportError("libcuda_dsl.so: cannot open shared object file\nand more")
        return modules[name]

    library = Library("0.26.0", load)
    case = need("qkv_norm", "compress_norm_rope_insert", "inverse_rope_quant")
    found = list(problems(library, case, ""))
    assert len(found) == 1
    assert found[0].startswith("compress_norm_rope_insert: vLLM 0.26.0: ")
    assert "ImportError: libcuda_dsl.so: cannot open shared object file" in found[0]
    assert not list(problems(library, case, "triton"))


def test_missing_deepgemm_or_flashmla_names_the_part() -> None:
    modules = vllm_double.modules()
    modules["vllm.v1.attention.ops.flashmla"].is_flashmla_sparse_supported = lambda: (False, "no extension")
    found = list(problems(Library("0.26.0", modules.__getitem__), need("indexer_logits", "sparse_attention"), ""))
    assert "DeepGEMM of vLLM 0.26.0 is missing: AttributeError" in found[0]
    assert "FlashMLA of vLLM 0.26.0 is missing: no extension" in found[1]


def test_a_function_is_looked_up_once() -> None:
    asked = []
    modules = vllm_double.modules()

    def load(name: str) -> Any:
        asked.append(name)
        return modules[name]

    library = Library("0.26.0", load)
    assert library.function("qkv_norm") is library.function("qkv_norm")
    assert asked == [vllm_double.OPS]


def test_signatures_are_held_to_what_we_pass() -> None:
    def function(a: int, b: int, *, c: int = 0) -> None: ...

    check_signature(function, Form("m:function", ("a", "b")))
    check_signature(lambda *args, **kwargs: None, Form("m:f", ("anything",)))
    check_signature(len, Form("m:len", ("obj",)))
    with pytest.raises(MissingError, match="function lacks d$"):
        check_signature(function, Form("m:function", ("a", "b", "d")))
    with pytest.raises(MissingError, match="function also needs b$"):
        check_signature(function, Form("m:function", ("a", "c")))


def test_torch_operators_are_held_to_their_schema() -> None:
    operator = torch.ops.aten.addmm
    assert operator_parameters(operator) == {"self": False, "mat1": False, "mat2": False, "beta": True, "alpha": True}
    check_signature(operator, Form("torch.ops:aten.addmm", ("self", "mat1", "mat2", "beta", "alpha")))
    check_signature(operator, Form("torch.ops:aten.addmm", ("self", "mat1", "mat2")))
    for takes in (("self", "mat1"), ("self", "mat2", "mat1")):
        with pytest.raises(MissingError, match="takes self, mat1, mat2, beta, alpha, not self, mat"):
            check_signature(operator, Form("torch.ops:aten.addmm", takes))


def test_importing_something_noisy_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy_engine.py").write_text(
        "import logging, sys, warnings\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n"
        "warnings.warn('a warning')\nlogging.getLogger('vllm.engine').warning('a log line')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    quiet_import("noisy_engine")
    logging.getLogger("vllm.engine").warning("a late line")
    assert capfd.readouterr() == ("", "")


# views ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["main-fp8", "indexer-fp8", "latent-fp8"])
def test_caches_become_views_of_the_same_bytes_in_a_slab_too(name: str) -> None:
    format = FORMATS[name]
    slab = torch.randint(256, (5, 64 * format.entry_bytes + 1152), dtype=torch.uint8)
    cache = PagedCache(slab[:, 576:], format, 64)
    view = by_entry(cache)
    assert view.shape == (5, 64, format.entry_bytes)
    assert view.data_ptr() == cache.pages.data_ptr()
    assert view.stride() == (slab.stride(0), format.entry_bytes, 1)
    assert by_head(cache).stride() == (slab.stride(0), format.entry_bytes, format.entry_bytes, 1)
    with pytest.raises(NotImplementedError, match=r"set cache\.slab to false"):
        require_dense(cache, "insert")


def test_padded_queries_are_found_again_without_a_copy() -> None:
    padded = torch.randn(3, 64, 512, dtype=torch.bfloat16)
    again = with_padding(padded[:, :16])
    assert again.shape == padded.shape
    assert again.data_ptr() == padded.data_ptr()


def test_other_queries_are_padded_with_zeros() -> None:
    q = torch.randn(3, 16, 512, dtype=torch.bfloat16)
    padded = with_padding(q)
    assert torch.equal(padded[:, :16], q)
    assert not padded[:, 16:].any()
    assert with_padding(torch.randn(2, 64, 512)).shape == (2, 64, 512)
    with pytest.raises(NotImplementedError, match="not for 129"):
        with_padding(torch.randn(2, 129, 512))


# once per step -------------------------------------------------------------------------------------------------------
def test_what_depends_on_a_tensor_is_made_once_until_it_is_written_to() -> None:
    lens, made = torch.tensor([1, 2]), []

    def make() -> int:
        made.append(int(lens.sum()))
        return made[-1]

    assert [once("sum", (lens,), make), once("sum", (lens,), make)] == [3, 3]
    lens += 1
    assert once("sum", (lens,), make) == 5
    assert once("other", (lens,), make) == 5
    assert made == [3, 5, 5]


def test_what_depends_on_a_tensor_dies_with_it() -> None:
    lens = torch.tensor([1])
    plan = once("plan", (lens,), lambda: torch.zeros(4))
    alive = weakref.ref(plan)
    del plan, lens
    assert alive() is None


def test_what_follows_a_tensor_is_renewed_in_place_and_dies_with_it() -> None:
    start, table = torch.tensor([0, 1]), torch.tensor([3, 4, 5])
    rows = start.clone()
    first = following("rows", (start, table), lambda: table[rows])
    assert first is following("rows", (start, table), lambda: table[rows])
    table += 10
    second = following("rows", (start, table), lambda: table[rows])
    assert (first.tolist(), second.tolist()) == ([3, 4], [13, 14])
    table += 10
    renew([None, table, start])
    assert (first.tolist(), second.tolist()) == ([23, 24], [23, 24])
    alive = weakref.ref(first)
    del start, first
    assert alive() is None


@pytest.mark.parametrize("query_len", [1, 3])
def test_a_graphs_next_inputs_reach_the_block_table_of_drafts(monkeypatch: pytest.MonkeyPatch, query_len: int) -> None:
    kind, seen = LayerKind.C4A, []
    monkeypatch.setattr(indexer, "_decode", lambda *arguments: seen.append(arguments[5]) or arguments[1].new_empty(0))
    workload = Workload("decode", 2, 4096, query_len, "none")
    layer = prepare(small_shape(kind), kind, CachePrecision(), [workload])
    buffers, fresh = layer.draw(workload, 1), layer.draw(workload, 2)
    assert not torch.equal(buffers["block_table"], fresh["block_table"])
    values = dict(buffers)
    for stage in STAGES[kind]:
        run_stage(stage, provider() if stage.name == "indexer_logits" else EagerProvider(), values)
        if seen:
            break
    refill(buffers, fresh)
    renew(buffers.values())
    read = seen[0].block_table[: 2 * query_len : query_len]
    assert torch.equal(read, fresh["block_table"])


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "decodes", "drafts"),
    [
        ((1, 1), (5, 1), 2, 1),
        ((3, 3), (5, 9), 2, 3),
        ((1, 3), (5, 9), 2, 0),
        ((1, 3), (5, 3), 1, 1),
        ((9,), (20,), 0, 0),
        ((1, 40, 1), (7, 40, 9), 1, 1),
    ],
)
def test_a_step_is_divided_into_decodes_and_prompts(
    query_lens: tuple[int, ...], seq_lens: tuple[int, ...], decodes: int, drafts: int
) -> None:
    start = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    split = split_step(start, torch.tensor(seq_lens, dtype=torch.int32))
    assert split is not None
    assert (split.decodes, split.drafts) == (decodes, drafts)
    assert split_step(None, start) is None


def test_prompts_share_a_workspace_while_it_stays_below_four_of_the_longest() -> None:
    even = Split((100,) * 3, (100,) * 3, 0)
    assert [(c.first, c.last, c.compressed, c.rows) for c in chunks_of(even, 4)] == [(0, 3, 25, 125)]
    long = Split((1, *(20,) * 6), (50, *(100_000,) * 6), 1)
    assert [(c.first, c.last, c.compressed) for c in chunks_of(long, 4)] == [(1, 5, 25_000), (5, 7, 25_000)]
    assert [(c.first, c.last, c.compressed, c.rows) for c in chunks_of(long, 0)] == [(1, 7, 0, 147)]


@pytest.mark.parametrize(
    ("version", "rows", "stride", "k", "capability", "name"),
    [
        ("0.26.0", 32, 2048, 512, (9, 0), "cooperative_topk"),
        ("0.26.0", 33, 2048, 512, (9, 0), "persistent_topk"),
        ("0.33.0", 64, 2048, 512, (9, 0), "cooperative_topk"),
        ("0.26.0", 1, 2047, 1024, (9, 0), "persistent_topk"),
        ("0.26.0", 1, 2048, 1024, (12, 0), "persistent_topk"),
        ("0.26.0", 1, 2048, 100, (9, 0), "row_topk_decode"),
    ],
)
def test_topk_takes_the_kernel_that_vllm_would(
    version: str, rows: int, stride: int, k: int, capability: tuple[int, int], name: str
) -> None:
    assert decode_kernel(Library(version), rows, stride, k, capability) == name


@pytest.mark.parametrize(("version", "bound"), [("0.26.0", 64), ("0.33.0", 400), ("0.40.0", 400)])
def test_the_persistent_topk_is_told_what_each_release_tells_it(version: str, bound: int) -> None:
    modules, told = vllm_double.modules(), []

    def persistent_topk(logits: Any, lengths: Any, output: Any, workspace: Any, k: int, max_seq_len: int) -> None:
        told.append(max_seq_len)

    modules["torch"].ops._C.persistent_topk = persistent_topk
    modules["vllm._custom_ops"] = ModuleType("vllm._custom_ops")
    starts = torch.arange(101, dtype=torch.int32)
    VllmProvider("", Library(version, modules.__getitem__)).topk(
        logits=torch.zeros(100, 64),
        candidate_lens=torch.full((100,), 64, dtype=torch.int32),
        k=512,
        query_start=starts,
        seq_lens=torch.full((100,), 400, dtype=torch.int32),
    )
    assert told == [bound]


def test_padding_is_reported_by_stage() -> None:
    assert provider().run_heads("sparse_attention", 16) == 64
    assert provider().run_heads("sparse_attention", 128) == 128
    assert provider().run_heads("inverse_rope_quant", 16) == 16


# translation ---------------------------------------------------------------------------------------------------------
WORKLOADS = (
    Workload("decode", 3, 700, 1, "spread"),
    Workload("decode", 2, 512, 2, "all"),
    Workload("decode", 2, 515, 3, "spread"),
    Workload("prefill", 1, 150, 150, "all"),
    Workload.of_requests("2q1s300_2q20s300_q131", "all"),
)


CASES = [(kind, workload, "") for kind in LayerKind for workload in WORKLOADS]
CASES += [(kind, WORKLOADS[-1], "triton") for kind in (LayerKind.C4A, LayerKind.C128A)]


@pytest.mark.parametrize(("kind", "workload", "variant"), CASES, ids=lambda part: getattr(part, "label", part))
def test_every_stage_comes_out_right_through_vllms_signatures(
    kind: LayerKind, workload: Workload, variant: str
) -> None:
    shape = replace(small_shape(kind), index_topk=512)
    precision = CachePrecision(slab=kind is not LayerKind.DSA)
    values = prepare(shape, kind, precision, [workload]).draw(workload, seed=1)
    ours, theirs = EagerProvider(), provider(variant)
    have = implemented_stages(theirs)
    for stage in STAGES[kind]:
        run_stage(stage, theirs if stage.name in have else ours, values)
        if stage.name in have:
            check = check_stage(stage, values)
            assert check.ok, check.sentence


@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("kind", [LayerKind.C4A, LayerKind.DSA])
def test_fp8_products_come_out_right_whoever_made_their_operands(kind: LayerKind, tokens: int) -> None:
    workload = Workload("decode", tokens, 300, 1, "all")
    shape = replace(small_shape(kind), hidden_size=256, q_lora_rank=128, index_topk=512)
    choice = WeightChoice("fp8")
    layer = prepare(shape, kind, CachePrecision(slab=kind is not LayerKind.DSA), [workload], choice=choice)
    theirs, ours = provider(), EagerProvider()
    for mixed in (False, True):
        values = layer.draw(workload, seed=2)
        for stage in STAGES[kind]:
            product = stage.name in PRODUCTS
            run_stage(
                stage, theirs if product or (mixed and stage.name in implemented_stages(theirs)) else ours, values
            )
            if product:
                check = check_stage(stage, values)
                assert check.ok, check.sentence


def test_scales_that_lie_as_deepgemm_wants_them_are_not_copied() -> None:
    laid = torch.rand(2, 3, 8).permute(2, 0, 1)[:6]
    assert groups_outermost(laid) is laid
    other = torch.rand(6, 2, 3)
    assert torch.equal(groups_outermost(other), other)
    assert groups_outermost(other).stride() == laid.stride()


def test_fp8_products_need_deepgemm_and_a_card_of_capability_9_and_bf16_ones_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = vllm_double.modules()
    library = Library("0.26.0", modules.__getitem__)
    assert not list(problems(library, need("input_projection", "output_group_projection"), ""))
    found = list(problems(library, need("input_projection", weights="fp8"), ""))
    assert found == ["input_projection: DeepGEMM of vLLM 0.26.0 is missing: " + DEEP_GEMM_MISSING]
    monkeypatch.setattr(needs, "capability", lambda: (10, 0))
    found = list(problems(library, need("input_projection", weights="fp8"), ""))
    assert "fp8 products on compute capability 9.0 only: input_projection" in found[0]


@pytest.mark.parametrize("kind", LayerKind)
def test_attention_is_planned_once_per_step_however_many_layers_run(kind: LayerKind) -> None:
    made: list[object] = []
    modules = vllm_double.modules()

    def get_mla_metadata() -> tuple[object, None]:
        made.append(vllm_double.get_mla_metadata()[0])
        return made[-1], None

    modules["vllm.v1.attention.ops.flashmla"].get_mla_metadata = get_mla_metadata
    theirs, ours = VllmProvider("", Library("0.26.0", modules.__getitem__)), EagerProvider()
    workload = Workload("decode", 3, 700, 1, "spread")
    layer = prepare(replace(small_shape(kind), index_topk=512), kind, CachePrecision(slab=False), [workload])
    for seed in (1, 2):
        values = layer.draw(workload, seed)
        for _ in range(2):
            for stage in STAGES[kind]:
                run_stage(stage, theirs if stage.name in implemented_stages(theirs) else ours, values)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("query_lens", "heads", "rows"),
    [
        ((1, 1, 1), 128, (3, 1)),
        ((2, 2, 2), 64, (3, 2)),
        ((2, 1), 64, (3, 1)),
        ((2, 2), 16, (1, 4)),
        ((1, 9), 128, (10, 1)),
    ],
)
def test_tokens_of_v32_are_divided_into_rows_as_vllm_does(
    query_lens: tuple[int, ...], heads: int, rows: tuple[int, int]
) -> None:
    decodes = sum(length < 9 for length in query_lens)
    assert latent_rows(sum(query_lens), heads, Split(query_lens, (50,) * len(query_lens), decodes)) == rows
    assert latent_rows(sum(query_lens), heads, None) == (sum(query_lens), 1)


@pytest.mark.parametrize("kind", LayerKind)
def test_a_token_that_sees_nothing_gets_an_lse_of_minus_infinity(kind: LayerKind) -> None:
    trial = Trial(provider(), Setting(kind))
    attending.empty_rows(trial)
    assert trial.checks
    assert all(check.ok for check in trial.checks)


@pytest.mark.parametrize("kind", LayerKind)
def test_padding_is_handed_on_as_slots_of_minus_1_and_writes_nothing(kind: LayerKind) -> None:
    trial = Trial(provider(), Setting(kind))
    padding_tokens(trial)
    assert {check.stage for check in trial.checks} >= WRITES.keys() & {stage.name for stage in STAGES[kind]}
    assert [check.sentence for check in trial.checks if not check.ok] == []


def test_latents_with_scales_as_they_are_pass_where_scales_are_easy_to_get_wrong() -> None:
    trial = Trial(provider(), Setting(LayerKind.DSA))
    numerics.exact_scales(trial)
    assert [check.sentence for check in trial.checks if not check.ok] == []


@pytest.mark.parametrize("kind", [LayerKind.SWA, LayerKind.C4A, LayerKind.C128A])
def test_requests_that_bring_no_tokens_call_no_kernel_of_their_own(kind: LayerKind) -> None:
    trial = Trial(provider(), Setting(kind))
    trial.layer(trial.sequences(requests=7, limit=140).step([140] + [0] * 6))
    assert [check.sentence for check in trial.checks if not check.ok] == []


@pytest.mark.parametrize("kind", LayerKind)
def test_a_step_without_tokens_calls_nothing(kind: LayerKind) -> None:
    workload = Workload("decode", 2, 300, 1, "all")
    shape = small_shape(kind)
    layer = prepare(shape, kind, CachePrecision(slab=False), [workload])
    values = layer.draw(workload, seed=0)
    tables = ("block_table", "window_block_table", "state_block_table", "query_start", "seq_lens", "cos_sin")
    empty = {
        name: value[:0]
        if isinstance(value, torch.Tensor) and name not in (*layer.weights, *layer.caches.caches, *tables)
        else value
        for name, value in values.items()
    }
    del empty["query_start"]
    theirs, ours = provider(), EagerProvider()
    for stage in STAGES[kind]:
        run_stage(stage, theirs if stage.name in implemented_stages(theirs) else ours, empty)
    assert empty["y"].shape == (0, shape.hidden_size)


def test_attention_by_itself_needs_no_metadata_of_the_step() -> None:
    assert "query_start" in further_parameters(provider().sparse_attention)
    workload = Workload("prefill", 1, 200, 200, "all")
    values = prepare(small_shape(LayerKind.SWA), LayerKind.SWA, CachePrecision(), [workload]).draw(workload, seed=0)
    del values["window_block_table"]
    for stage in STAGES[LayerKind.SWA]:
        run_stage(stage, provider() if stage.name == "sparse_attention" else EagerProvider(), values)
    stage = next(stage for stage in STAGES[LayerKind.SWA] if stage.name == "sparse_attention")
    assert check_stage(stage, values).ok
