"""The eager provider against the independent reference, stage by stage, and its own promises."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from dsv4_kernels import codec
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from dsv4bench.model.shape import V3_2, V4_FLASH, LayerKind, ModelShape
from dsv4bench.model.stage import STAGES, Stage
from dsv4bench.providers.base import Need, implemented_stages
from dsv4bench.providers.eager import EagerProvider, entries, products, projection, workspace
from dsv4bench.providers.reference import ReferenceProvider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.layer import Layer, prepare, run_layer, run_stage, stage_arguments

EAGER, REFERENCE = EagerProvider(), ReferenceProvider()
SMALL_V4 = replace(
    V4_FLASH, hidden_size=256, num_heads=8, q_lora_rank=128, o_groups=2, o_lora_rank=64, index_heads=16, index_topk=32
)
SMALL_V3 = replace(V3_2, hidden_size=256, num_heads=4, q_lora_rank=128, index_heads=16, index_topk=96)
KINDS = tuple(LayerKind)
BOUNDARY_LENGTHS = (*range(1, 10), *range(126, 131), *range(255, 258))
FP8 = CachePrecision()
TABLES = ("block_table", "window_block_table", "state_block_table")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: more threads only get into each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(kind: LayerKind) -> ModelShape:
    return SMALL_V3 if kind is LayerKind.DSA else SMALL_V4


def decode(context: int, batch: int = 1, query_len: int = 1, boundary: str = "all") -> Workload:
    return Workload("decode", batch, context, query_len, boundary)


def row_error(out: torch.Tensor, ref: torch.Tensor) -> tuple[float, float]:
    """Largest ‖out − ref‖/‖ref‖ and smallest cosine over the vectors of the last dim."""
    out, ref = out.double().flatten(0, -2), ref.double().flatten(0, -2)
    if out.numel() == 0:
        return 0.0, 1.0
    error = (out - ref).norm(dim=-1) / ref.norm(dim=-1).clamp_min(1e-30)
    cosine = torch.cosine_similarity(out, ref, dim=-1)
    return error.max().item(), torch.where(ref.norm(dim=-1) == 0, 1.0, cosine).min().item()


def assert_close(out: torch.Tensor, ref: torch.Tensor, what: str) -> None:
    assert out.shape == ref.shape, what
    assert out.dtype == ref.dtype, what
    error, cosine = row_error(out, ref)
    limit = 1e-5 if ref.dtype == torch.float32 else 1e-2
    assert error <= limit, f"{what}: row error {error:.2e}"
    assert cosine >= 0.9999, f"{what}: cosine {cosine}"


def written_pages(cache: PagedCache | torch.Tensor) -> torch.Tensor:
    return cache.pages if isinstance(cache, PagedCache) else cache


def assert_cache_equal(
    cache: PagedCache | torch.Tensor, slots: torch.Tensor, out: torch.Tensor, ref: torch.Tensor, what: str
) -> None:
    """State rows within fp32 rounding; entries equal but for values next to a rounding boundary, and nothing else."""
    if not isinstance(cache, PagedCache):
        torch.testing.assert_close(out, ref, rtol=1e-6, atol=1e-6, equal_nan=True, msg=what)
        return
    written = slots[slots >= 0]
    exact = cache.format.precision == "fp32"
    differing = int((out != ref).sum())
    allowed = (1 if exact else 0.02) * cache.format.entry_bytes * len(written)
    assert differing <= allowed, f"{what}: {differing} bytes differ"
    pair = (codec.read_entries(replace(cache, pages=pages), written) for pages in (out, ref))
    error, _ = row_error(*pair)
    assert error <= (1e-5 if exact else 1e-2), f"{what}: entry error {error:.2e}"


def assert_quantised(values: torch.Tensor, scales: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    """Every e4m3 value is a nearest one, give or take one bf16 ulp of the value before quantisation."""
    step = scales.repeat_interleave(128, dim=-1)
    slack = exact.abs() * (2.0**-4 + 2.0**-7) + step * 2.0**-10
    assert ((values.float() * step - exact).abs() <= slack).all(), what
    assert exact.unflatten(-1, (-1, 128)).abs().amax(-1).le(scales * 448 * (1 + 2.0**-7)).all(), what


def assert_same_selection(out: torch.Tensor, ref: torch.Tensor, logits: torch.Tensor, lens: torch.Tensor) -> None:
    """Equal sets, where entries whose logits lie within 2^-10 of the row's largest may swap; −1 only as a tail."""
    for row, (mine, theirs) in enumerate(zip(out.tolist(), ref.tolist(), strict=True)):
        count = min(int(lens[row]), len(mine))
        assert all(i >= 0 for i in mine[:count])
        assert all(i == -1 for i in mine[count:])
        assert len(set(mine[:count])) == count
        swapped = set(mine[:count]) ^ set(theirs[:count])
        if swapped:
            scores = logits[row, sorted(swapped)]
            assert scores.max() - scores.min() <= 2.0**-10 * logits[row, : int(lens[row])].abs().max()


def compare_stage(stage: Stage, values: dict[str, Any]) -> None:
    """Run a stage with both providers on the same inputs, compare, and keep the reference's result in ``values``."""
    caches = {name: values[name] for name in stage.updates}
    slots = next((values[tensor] for tensor in stage.inputs.values() if tensor.endswith("slots")), torch.empty(0))
    before = {name: written_pages(cache).clone() for name, cache in caches.items()}
    mine = dict(values)
    run_stage(stage, EAGER, mine)
    after = {name: written_pages(cache).clone() for name, cache in caches.items()}
    for name, cache in caches.items():
        written_pages(cache).copy_(before[name])
    run_stage(stage, REFERENCE, values)
    for name, cache in caches.items():
        assert_cache_equal(cache, slots, after[name], written_pages(cache), f"{stage.name}: {name}")
    compare_outputs(stage, mine, values)


def compare_outputs(stage: Stage, mine: dict[str, Any], values: dict[str, Any]) -> None:
    lens = values.get("candidate_lens")
    if stage.name == "topk":
        assert_same_selection(mine["topk_indices"], values["topk_indices"], values["logits"], lens)
    elif stage.name == "index_map":
        assert torch.equal(mine["compressed_indices"], values["compressed_indices"])
        assert torch.equal(mine["compressed_lens"], values["compressed_lens"])
    elif stage.name == "indexer_logits":
        hidden = torch.arange(values["max_candidates"], device=lens.device) >= lens[:, None]
        out, ref = (v["logits"][:, : values["max_candidates"]].masked_fill(hidden, 0) for v in (mine, values))
        assert_close(out, ref, stage.name)
    elif stage.name == "indexer_query_rope_quant":
        assert_index_queries(mine, values)
    elif stage.name == "inverse_rope_quant" and values["o_scales"] is not None:
        exact = REFERENCE.inverse_rope_quant(**stage_arguments(stage, values) | {"precision": "bf16"})[0].float()
        assert_quantised(mine["o_values"], mine["o_scales"], exact, stage.name)
    else:
        for name in stage.outputs:
            if values[name] is None:
                assert mine[name] is None
            else:
                assert_close(mine[name], values[name], f"{stage.name}: {name}")


def assert_index_queries(mine: dict[str, Any], values: dict[str, Any]) -> None:
    out, ref = mine["index_q_values"], values["index_q_values"]
    assert out.dtype == ref.dtype
    if out.dtype in (torch.bfloat16, torch.float32):
        assert row_error(out, ref)[0] <= 1e-2
    else:
        equal = (out.view(torch.uint8) == ref.view(torch.uint8)).float().mean()
        assert equal > 0.99
    if values["index_q_scales"] is not None:
        assert (mine["index_q_scales"] == values["index_q_scales"]).float().mean() > 0.99
    torch.testing.assert_close(mine["index_weights"], values["index_weights"], rtol=1e-5, atol=1e-6)


def compare_layer(layer: Layer, workload: Workload, seed: int = 0) -> None:
    values = layer.draw(workload, seed)
    for stage in STAGES[layer.kind]:
        compare_stage(stage, values)


@pytest.mark.parametrize("kind", KINDS)
def test_it_implements_every_stage(kind: LayerKind) -> None:
    assert {stage.name for stage in STAGES[kind]} <= set(implemented_stages(EAGER))


@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_agrees_with_the_reference_at_boundary_lengths(kind: LayerKind) -> None:
    workloads = [decode(context) for context in BOUNDARY_LENGTHS]
    layer = prepare(small(kind), kind, FP8, workloads)
    for seed, workload in enumerate(workloads):
        compare_layer(layer, workload, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("main", "indexer", "slab"),
    [("bf16", "bf16", True), ("fp8", "fp4", False), ("fp32", "fp32", True), ("fp8", "fp8", False)],
)
def test_every_cache_format_agrees_with_the_reference(kind: LayerKind, main: str, indexer: str, slab: bool) -> None:
    workload = decode(700, batch=5, boundary="spread")
    compare_layer(prepare(small(kind), kind, CachePrecision(main, indexer, slab), [workload]), workload)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "workload",
    [
        Workload("prefill", 2, 270, 270, "spread"),
        Workload("prefill", 2, 420, 150, "spread"),
        decode(515, batch=4, query_len=3, boundary="spread"),
        decode(256, batch=3, boundary="none"),
    ],
    ids=lambda workload: workload.label,
)
def test_prefill_extension_and_drafts_agree_with_the_reference(kind: LayerKind, workload: Workload) -> None:
    compare_layer(prepare(small(kind), kind, FP8, [workload]), workload)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_tokens_is_empty_and_writes_nothing(kind: LayerKind) -> None:
    workload = decode(300, batch=2)
    layer = prepare(small(kind), kind, FP8, [workload])
    values = layer.draw(workload, 0)
    tokens = values["positions"].shape[0]
    empty = {
        name: value[:0]
        if isinstance(value, torch.Tensor) and name not in layer.weights and len(value) == tokens
        else value
        for name, value in values.items()
    }
    empty |= {
        name: values[name] for name in (*layer.caches.caches, "block_table", "state_block_table") if name in values
    }
    before = {name: written_pages(cache).clone() for name, cache in layer.caches.caches.items()}
    run_layer(STAGES[kind], dict.fromkeys((stage.name for stage in STAGES[kind]), EAGER), empty)
    assert empty["y"].shape == (0, small(kind).hidden_size)
    for name, cache in layer.caches.caches.items():
        # as bytes: states that nothing wrote may hold NaN
        assert torch.equal(written_pages(cache).view(torch.uint8), before[name].view(torch.uint8))


@pytest.mark.parametrize(("shape", "kind"), [(V4_FLASH, LayerKind.C4A), (V3_2, LayerKind.DSA)])
def test_real_dimensions_agree_with_the_reference(shape: ModelShape, kind: LayerKind) -> None:
    workload = decode(3072, batch=2, boundary="spread")
    compare_layer(prepare(shape, kind, FP8, [workload]), workload)


@pytest.mark.parametrize("kind", KINDS)
def test_chunking_changes_nothing(kind: LayerKind, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload("prefill", 3, 300, 50, "spread")
    layer = prepare(small(kind), kind, FP8, [workload])
    providers = dict.fromkeys((stage.name for stage in STAGES[kind]), EAGER)
    whole, chunked = layer.draw(workload, 0), layer.draw(workload, 0)
    run_layer(STAGES[kind], providers, whole)
    monkeypatch.setitem(workspace.WORKSPACE_BYTES, "cpu", 1 << 20)
    run_layer(STAGES[kind], providers, chunked)
    error, _ = row_error(chunked["y"], whole["y"])
    assert error <= 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaks_from_bytes_that_no_index_names(kind: LayerKind) -> None:
    workload = decode(130, batch=3, boundary="spread")
    layer = prepare(small(kind), kind, FP8, [workload])
    providers = dict.fromkeys((stage.name for stage in STAGES[kind]), EAGER)
    clean = layer.draw(workload, 0)
    run_layer(STAGES[kind], providers, clean)
    poisoned = layer.draw(workload, 0)
    owned = torch.cat([poisoned[name].flatten() for name in TABLES if name in poisoned]).unique()
    for cache in layer.caches.caches.values():
        pages = written_pages(cache)
        others = [page for page in range(len(pages)) if page == 0 or page not in owned]
        pages[others] = 0xFF if isinstance(cache, PagedCache) else float("nan")
    run_layer(STAGES[kind], providers, poisoned)
    assert torch.equal(poisoned["y"], clean["y"])


@pytest.mark.parametrize("sink", [None, torch.tensor([0.5, -1.0])])
def test_attention_over_nothing_is_zero_with_an_lse_of_minus_infinity(sink: torch.Tensor | None) -> None:
    cache = PagedCache(torch.full((2, 4 * 584), 0xFF, dtype=torch.uint8), FORMATS["main-fp8"], 4)
    nothing = torch.full((3, 8), -1, dtype=torch.int32)
    out, lse = EAGER.sparse_attention(
        q=torch.randn(3, 2, 512).bfloat16(), window_cache=cache, window_indices=nothing,
        window_lens=torch.tensor([0, 8, 3], dtype=torch.int32), compressed_cache=None, compressed_indices=None,
        compressed_lens=None, sink=sink, softmax_scale=512**-0.5,
    )  # fmt: skip
    assert (out == 0).all()
    assert (lse == float("-inf")).all()


def test_an_index_of_minus_one_in_the_middle_contributes_nothing() -> None:
    cache = PagedCache(torch.zeros(4, 4 * 584, dtype=torch.uint8), FORMATS["main-fp8"], 4)
    codec.random_fill(cache, torch.Generator().manual_seed(0))
    q = torch.randn(1, 2, 512, generator=torch.Generator().manual_seed(0))

    def attend(slots: list[int], length: int) -> torch.Tensor:
        return EAGER.sparse_attention(
            q=q, window_cache=None, window_indices=None, window_lens=None, compressed_cache=cache,
            compressed_indices=torch.tensor([slots], dtype=torch.int32),
            compressed_lens=torch.tensor([length], dtype=torch.int32), sink=None, softmax_scale=512**-0.5,
        )[0]  # fmt: skip

    assert torch.equal(attend([-1, 7, 2, -1, 5, 9], 5), attend([7, 2, 5, -1, -1, -1], 3))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 3e38])
def test_topk_never_selects_past_the_end_or_twice(garbage: float) -> None:
    lens = torch.tensor([0, 3, 5, 8, 9], dtype=torch.int32)
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)) - 5
    clean = logits.clone()
    logits[torch.arange(9) >= lens[:, None]] = garbage
    chosen = EAGER.topk(logits=logits, candidate_lens=lens, k=5)
    assert_same_selection(chosen, REFERENCE.topk(logits=clean, candidate_lens=lens, k=5), clean, lens)
    assert EAGER.topk(logits=logits[:, :0], candidate_lens=lens * 0, k=4).eq(-1).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-1, -1, *range(12)]), min_size=0, max_size=10), st.integers(0, 100))
def test_scattered_rows_land_once_and_minus_one_writes_nothing(slots: list[int], seed: int) -> None:
    slots = [slot for i, slot in enumerate(slots) if slot < 0 or slot not in slots[:i]]
    pages = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(seed))
    rows = torch.randn(len(slots), 5)
    expected = pages.clone()
    for slot, row in zip(slots, rows, strict=True):
        if slot >= 0:
            expected[slot // 4, slot % 4] = row
    entries.scatter_rows(pages, torch.tensor(slots, dtype=torch.int64), rows)
    assert torch.equal(pages, expected)


QUANTISED = ("main-fp8", "latent-fp8", "indexer-fp8", "indexer-fp4")


@pytest.mark.parametrize("name", QUANTISED)
def test_stored_bytes_equal_the_codec_s(name: str) -> None:
    """Scale edges (amax = largest · 2^k and its neighbours), ties, zeros and tiny blocks included."""
    fmt = FORMATS[name]
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(64, fmt.dim, generator=generator) * 2.0 ** torch.arange(-40, 24)[:, None]
    edge = 448.0 if fmt.precision == "fp8" else 6.0
    values[:8] = 0
    values[8:40] = values[8:40].sign() * torch.randint(0, 29, (32, fmt.dim), generator=generator) * 0.25
    values[8:40, ::32] = edge * 2.0 ** torch.arange(-16, 16)[:, None]
    values[24:40, ::32] *= 1 + 2.0**-7
    pages = torch.zeros(2, 5, 16 * fmt.entry_bytes + 576, dtype=torch.uint8)
    mine, theirs = (PagedCache(page, fmt, 16) for page in pages)
    slots = torch.randperm(80, generator=generator)[:64]
    entries.write_entries(mine, slots, values)
    codec.write_entries(theirs, slots, values)
    assert torch.equal(mine.pages, theirs.pages)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(entries.read_entries(mine, slots, dtype), codec.read_entries(mine, slots).to(dtype))


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {n for n in FORMATS if n.endswith("fp64")}))
@pytest.mark.parametrize("offset", [0, 4, 16])
def test_entries_survive_any_page_stride_and_offset(name: str, offset: int) -> None:
    fmt = FORMATS[name]
    slab = torch.full((3, 4 * fmt.entry_bytes + offset + 12), 0xFF, dtype=torch.uint8)
    cache = PagedCache(slab[:, offset : offset + 4 * fmt.entry_bytes], fmt, 4)
    values = torch.randn(3, fmt.dim)
    slots = torch.tensor([11, -1, 2])
    entries.write_entries(cache, slots, values)
    assert torch.equal(entries.read_entries(cache, slots, torch.float32), codec.read_entries(cache, slots))
    assert (slab[:, :offset] == 0xFF).all()
    assert (slab[1] == 0xFF).all()


def test_a_step_that_completes_more_entries_than_consecutive_positions_can_fails() -> None:
    layer = prepare(SMALL_V4, LayerKind.C128A, FP8, [workload := Workload("prefill", 1, 200, 200, "all")])
    values = layer.draw(workload, 0)
    values["compressed_slots"] = torch.zeros_like(values["compressed_slots"])
    stage = next(stage for stage in STAGES[LayerKind.C128A] if stage.name == "compress_norm_rope_insert")
    with pytest.raises(RuntimeError, match="consecutive"):
        run_stage(stage, EAGER, values | {"compressor_kv_score": None})


def test_it_says_what_it_does_not_support() -> None:
    need = Need(LayerKind.C4A, (), "cpu", "fp8", "fp8", 64, "decode")
    assert EAGER.supports(need).ok
    assert "mps" in EAGER.supports(replace(need, device="mps")).reason
    assert "fp64" in EAGER.supports(replace(need, main="fp64")).reason
    assert "fp64" in EAGER.supports(replace(need, indexer="fp64")).reason
    assert EAGER.supports(replace(need, kind=LayerKind.SWA, indexer="fp64")).ok


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indexer", ["fp8", "fp4"])
def test_the_cuda_path_has_no_data_dependent_shape_or_host_synchronisation(
    kind: LayerKind, indexer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under fake tensors, ``.item()``, boolean-mask shapes and dtype mismatches are errors; no GPU is needed."""
    workload = Workload("prefill", 3, 300, 200, "spread")
    layer = prepare(small(kind), kind, CachePrecision("fp8", indexer), [workload])
    drawn = layer.draw(workload, 0)
    monkeypatch.setattr(products, "has_mixed_products", lambda device: True)
    monkeypatch.setattr(projection, "has_mixed_products", lambda device: True)
    with FakeTensorMode() as mode:

        def fake(value: Any) -> Any:
            if isinstance(value, PagedCache):
                return replace(value, pages=fake(value.pages))
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

        values = {name: fake(value) for name, value in drawn.items()}
        run_layer(STAGES[kind], dict.fromkeys((stage.name for stage in STAGES[kind]), EAGER), values)
        with pytest.raises(DataDependentOutputException):
            values["positions"].sum().item()
    assert values["y"].shape == (600, small(kind).hidden_size)
    assert values["y"].dtype == torch.bfloat16


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_captured_graph_replays_what_eager_calls_compute(kind: LayerKind, phase: str) -> None:
    workload = decode(700, 5, boundary="spread") if phase == "decode" else Workload("prefill", 2, 300, 300, "spread")
    layer = prepare(small(kind), kind, FP8, [workload], device="cuda")
    providers = dict.fromkeys((stage.name for stage in STAGES[kind]), EAGER)
    plain, captured = layer.draw(workload, 0), layer.draw(workload, 0)
    run_layer(STAGES[kind], providers, plain)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run_layer(STAGES[kind], providers, captured)
    captured["y"].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert row_error(captured["y"], plain["y"])[0] <= 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indexer", ["fp8", "fp4", "bf16"])
def test_the_gpu_agrees_with_the_reference(kind: LayerKind, indexer: str) -> None:
    workloads = [decode(700, 5, boundary="spread"), Workload("prefill", 2, 300, 300, "spread"), decode(9, 3)]
    layer = prepare(small(kind), kind, CachePrecision("fp8", indexer), workloads, device="cuda")
    for workload in workloads:
        compare_layer(layer, workload)
