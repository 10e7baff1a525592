"""The launches that ``compile_report`` compiles: every kernel, in the shapes and tiles that matter, on meta tensors."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from dsv4_kernels import triton_unfused as unfused
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS, state_row_floats
from dsv4_kernels.triton.compress_norm_rope_insert import compress_norm_rope_insert
from dsv4_kernels.triton.compressor_state_save import compressor_state_save
from dsv4_kernels.triton.gather_dequant import gather_dequant
from dsv4_kernels.triton.index_map import index_map
from dsv4_kernels.triton.indexer_key_insert import indexer_key_insert
from dsv4_kernels.triton.indexer_logits import indexer_logits
from dsv4_kernels.triton.indexer_query_rope_quant import indexer_query_rope_quant
from dsv4_kernels.triton.inverse_rope_quant import inverse_rope_quant
from dsv4_kernels.triton.latent_insert import latent_insert
from dsv4_kernels.triton.linear_fp8 import grouped_linear_fp8, linear_fp8
from dsv4_kernels.triton.qkv_norm import qkv_norm
from dsv4_kernels.triton.query_norm_rope_insert import query_norm_rope_insert
from dsv4_kernels.triton.query_rope import query_rope
from dsv4_kernels.triton.sparse_attention import sparse_attention
from dsv4_kernels.triton.topk import topk
from dsv4_kernels.weight import Fp8Weight

FEW, SOME, MANY = 1, 128, 8192
"""Token counts that reach every row of the tuning tables."""


@dataclass(frozen=True)
class Case:
    """A launch to compile.

    Attributes:
        launch: calls launchers on meta tensors.
        spills: bytes per thread that the kernels are known and allowed to spill.
    """

    launch: Callable[[], object]
    spills: int = 0


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _table() -> torch.Tensor:
    return _meta(4096, 64, dtype=torch.float32)


def _cache(name: str, entries: int) -> PagedCache:
    size = -(-FORMATS[name].page_bytes(entries) // 576) * 576
    return PagedCache(_meta(4, size, dtype=torch.uint8), FORMATS[name], entries)


def _long(tokens: int) -> torch.Tensor:
    return _meta(tokens, dtype=torch.int64)


def _query(tokens: int, cache: str, heads: int = 64) -> None:
    query_norm_rope_insert(
        q=_meta(tokens, heads, 512), kv=_meta(tokens, 512), positions=_long(tokens), cos_sin=_table(),
        window_cache=_cache(cache, 64), window_slots=_long(tokens), eps=1e-6,
    )  # fmt: skip


def _inverse(tokens: int, precision: str, scale_format: str = "fp32") -> None:
    inverse_rope_quant(
        o=_meta(tokens, 64, 512), positions=_long(tokens), cos_sin=_table(), groups=8, precision=precision,
        scale_format=scale_format,
    )  # fmt: skip


def _index_query(tokens: int, precision: str, rope_style: str = "interleaved") -> None:
    indexer_query_rope_quant(
        index_q=_meta(tokens, 64, 128), head_weights=_meta(tokens, 64), positions=_long(tokens), cos_sin=_table(),
        precision=precision, rope_style=rope_style,
    )  # fmt: skip


def _state_save(tokens: int, dim: int, ratio: int) -> None:
    row, block = state_row_floats(dim, ratio), 4 if ratio == 4 else 8
    compressor_state_save(
        kv_score=_meta(tokens, row, dtype=torch.float32), ape=_meta(ratio, row // 2, dtype=torch.float32),
        positions=_long(tokens), state_cache=_meta(4, block, row, dtype=torch.float32), state_slots=_long(tokens),
    )  # fmt: skip


def _compress(tokens: int, cache: str, ratio: int) -> None:
    dim, block = FORMATS[cache].dim, 4 if ratio == 4 else 8
    compress_norm_rope_insert(
        state_cache=_meta(4, block, state_row_floats(dim, ratio), dtype=torch.float32),
        state_block_table=_meta(2, 64, dtype=torch.int32), token_to_request=_meta(tokens, dtype=torch.int32),
        positions=_long(tokens), compressed_slots=_long(tokens), norm_weight=_meta(dim), cos_sin=_table(),
        cache=_cache(cache, 64 if ratio == 4 else 2), ratio=ratio, eps=1e-6,
    )  # fmt: skip


def _qkv_norm(tokens: int, rank: int) -> None:
    qkv_norm(qkv_latent=_meta(tokens, rank + 512), q_norm_weight=_meta(rank), kv_norm_weight=_meta(512), eps=1e-6)


def _index_map(tokens: int, k: int) -> None:
    index_map(
        topk_indices=_meta(tokens, k, dtype=torch.int32), token_to_request=_meta(tokens, dtype=torch.int32),
        block_table=_meta(2, 64, dtype=torch.int32), entries=64,
    )  # fmt: skip


def _elementwise() -> dict[str, Case]:
    cases: dict[str, Callable[[], object]] = {}
    for tokens in (FEW, SOME, MANY):
        for cache in ("main-fp8", "main-bf16"):
            cases[f"query_norm_rope_insert T={tokens} {cache}"] = lambda t=tokens, c=cache: _query(t, c)
            for ratio in (4, 128):
                cases[f"compress_norm_rope_insert T={tokens} m={ratio} {cache}"] = lambda t=tokens, c=cache, m=ratio: (
                    _compress(t, c, m)
                )
        for cache in ("indexer-fp8", "indexer-fp4"):
            cases[f"indexer_compress_insert T={tokens} {cache}"] = lambda t=tokens, c=cache: _compress(t, c, 4)
        for precision in ("fp8", "fp4", "bf16"):
            cases[f"indexer_query_rope_quant T={tokens} {precision}"] = lambda t=tokens, p=precision: _index_query(t, p)
        for scales in ("fp32", "ue8m0"):
            cases[f"inverse_rope_quant T={tokens} fp8 {scales}"] = lambda t=tokens, s=scales: _inverse(t, "fp8", s)
        cases[f"inverse_rope_quant T={tokens} bf16"] = lambda t=tokens: _inverse(t, "bf16")
        for dim, ratio in ((512, 4), (512, 128), (128, 4)):
            cases[f"compressor_state_save T={tokens} d={dim} m={ratio}"] = lambda t=tokens, d=dim, m=ratio: _state_save(
                t, d, m
            )
    cases["indexer_query_rope_quant half fp8"] = lambda: _index_query(SOME, "fp8", "half")
    for rank in (1024, 1536):
        cases[f"qkv_norm rq={rank}"] = lambda r=rank: _qkv_norm(SOME, r)
    for k in (512, 1024, 2048):
        cases[f"index_map k={k}"] = lambda n=k: _index_map(SOME, n)
    return {name: Case(launch) for name, launch in cases.items()}


def _unfused() -> dict[str, Case]:
    def query() -> None:
        unfused.query_norm_rope_insert(
            q=_meta(SOME, 64, 512), kv=_meta(SOME, 512), positions=_long(SOME), cos_sin=_table(),
            window_cache=_cache("main-fp8", 64), window_slots=_long(SOME), eps=1e-6,
        )  # fmt: skip

    def output() -> None:
        unfused.inverse_rope_quant(
            o=_meta(SOME, 64, 512), positions=_long(SOME), cos_sin=_table(), groups=8, precision="fp8"
        )

    def index_query(precision: str) -> None:
        unfused.indexer_query_rope_quant(
            index_q=_meta(SOME, 64, 128), head_weights=_meta(SOME, 64), positions=_long(SOME), cos_sin=_table(),
            precision=precision, rope_style="interleaved",
        )  # fmt: skip

    def compressor(cache: str, ratio: int) -> None:
        dim, block = FORMATS[cache].dim, 4 if ratio == 4 else 8
        row = state_row_floats(dim, ratio)
        state = _meta(4, block, row, dtype=torch.float32)
        unfused.compressor_state_save(
            kv_score=_meta(SOME, row, dtype=torch.float32), ape=_meta(ratio, row // 2, dtype=torch.float32),
            positions=_long(SOME), state_cache=state, state_slots=_long(SOME),
        )  # fmt: skip
        unfused.compress_norm_rope_insert(
            state_cache=state, state_block_table=_meta(2, 64, dtype=torch.int32),
            token_to_request=_meta(SOME, dtype=torch.int32), positions=_long(SOME), compressed_slots=_long(SOME),
            norm_weight=_meta(dim), cos_sin=_table(), cache=_cache(cache, 64 if ratio == 4 else 2), ratio=ratio,
            eps=1e-6,
        )  # fmt: skip

    def slots() -> None:
        unfused.index_map(
            topk_indices=_meta(SOME, 512, dtype=torch.int32), token_to_request=_meta(SOME, dtype=torch.int32),
            block_table=_meta(2, 64, dtype=torch.int32), entries=64,
        )  # fmt: skip

    return {
        "unfused query_norm_rope_insert": Case(query),
        "unfused inverse_rope_quant": Case(output),
        "unfused indexer_query_rope_quant fp8": Case(lambda: index_query("fp8")),
        "unfused indexer_query_rope_quant fp4": Case(lambda: index_query("fp4")),
        "unfused compressor m=4 main-fp8": Case(lambda: compressor("main-fp8", 4)),
        "unfused compressor m=128 main-fp8": Case(lambda: compressor("main-fp8", 128)),
        "unfused compressor m=4 indexer-fp8": Case(lambda: compressor("indexer-fp8", 4)),
        "unfused index_map": Case(slots),
    }


def _attention(name: str, heads: int, splits: int) -> None:
    latent = name.startswith("latent")
    indices, lens = _meta(SOME, 512, dtype=torch.int32), _meta(SOME, dtype=torch.int32)
    sparse_attention(
        q=_meta(SOME, heads, 576 if latent else 512), window_cache=None if latent else _cache(name, 64),
        window_indices=None if latent else _meta(SOME, 128, dtype=torch.int32), window_lens=None if latent else lens,
        compressed_cache=_cache(name, 64), compressed_indices=indices, compressed_lens=lens,
        sink=None if latent else _meta(heads, dtype=torch.float32), softmax_scale=0.04, splits=splits,
    )  # fmt: skip


def _logits(tokens: int, precision: str, requests: int, entries: int = 4096) -> None:
    dtype = {"fp8": torch.float8_e4m3fn, "fp4": torch.uint8, "bf16": torch.bfloat16}[precision]
    indexer_logits(
        index_q_values=_meta(tokens, 64, 64 if precision == "fp4" else 128, dtype=dtype),
        index_q_scales=_meta(tokens, 64, 4, dtype=torch.uint8) if precision == "fp4" else None,
        index_weights=_meta(tokens, 64, dtype=torch.float32), indexer_cache=_cache(f"indexer-{precision}", 64),
        block_table=_meta(requests, 64, dtype=torch.int32), token_to_request=_meta(tokens, dtype=torch.int32),
        candidate_lens=_meta(tokens, dtype=torch.int32), max_candidates=entries,
    )  # fmt: skip


def _topk(width: int, k: int, rows: int = 2) -> None:
    topk(logits=_meta(rows, width, dtype=torch.float32), candidate_lens=_meta(rows, dtype=torch.int32), k=k)


def _latent() -> None:
    cache = _cache("latent-fp8", 64)
    latent_insert(
        kv=_meta(SOME, 512), qkv_latent=_meta(SOME, 2112), positions=_long(SOME), cos_sin=_table(), cache=cache,
        slots=_long(SOME),
    )  # fmt: skip
    query_rope(q=_meta(SOME, 128, 192), q_absorbed=_meta(SOME, 128, 512), positions=_long(SOME), cos_sin=_table())
    norm = _meta(128, dtype=torch.float32)
    indexer_key_insert(
        index_k=_meta(SOME, 128), norm_weight=norm, norm_bias=norm, positions=_long(SOME), cos_sin=_table(),
        cache=_cache("indexer-fp8", 64), slots=_long(SOME), eps=1e-6,
    )  # fmt: skip


def _gather() -> None:
    lens = _meta(2, dtype=torch.int32)
    gather_dequant(
        cache=_cache("main-fp8", 64), block_table=_meta(2, 64, dtype=torch.int32), firsts=lens, lens=lens, max_len=1024,
        out=_meta(2, 2048, 512), offset=0,
    )  # fmt: skip


def _selection() -> dict[str, Case]:
    # on sm_90 fp8 entries take the Gluon forms; the plain one's tiles do not fit into registers. Shares of bf16 entries
    # spill once an item
    spills = {"main-fp8": 1024, "main-bf16": 16, "latent-fp8": 1024, "latent-bf16": 1024}
    cases = {
        f"sparse_attention {name} H={heads} splits={splits}": Case(
            lambda n=name, h=heads, s=splits: _attention(n, h, s), spills[name]
        )
        for name, heads, splits in (
            ("main-fp8", 64, 1), ("main-fp8", 64, 4), ("main-fp8", 16, 4), ("main-bf16", 64, 1), ("main-bf16", 64, 4),
            ("latent-fp8", 64, 1), ("latent-fp8", 128, 4), ("latent-bf16", 128, 4),
        )
    }  # fmt: skip
    for precision in ("fp8", "fp4", "bf16"):
        cases[f"indexer_logits T={SOME} {precision}"] = Case(lambda p=precision: _logits(SOME, p, SOME))
    cases["indexer_logits T=1 fp8"] = Case(lambda: _logits(FEW, "fp8", FEW))
    cases["indexer_logits T=4096 fp8"] = Case(lambda: _logits(4096, "fp8", 4096))
    for tokens in (2, SOME, 4096):
        cases[f"indexer_logits T={tokens} fp8, one request"] = Case(lambda t=tokens: _logits(t, "fp8", 1, 262144))
    for tokens in (1024, 4096):
        cases[f"indexer_logits T={tokens} fp8, one short request"] = Case(lambda t=tokens: _logits(t, "fp8", 1))
    for width, k in ((2048, 512), (4096, 1024), (16384, 1024), (262144, 512), (1_048_576, 2048)):
        cases[f"topk {width} k={k}"] = Case(lambda w=width, n=k: _topk(w, n))
    for rows in (8, 64):
        cases[f"topk T={rows} 262144 k=512"] = Case(lambda r=rows: _topk(262144, 512, r))
    for width, k in ((32768, 512), (65536, 512), (65536, 1024), (65536, 2048), (65535, 1024)):
        cases[f"topk T=4096 {width} k={k}"] = Case(lambda w=width, n=k: _topk(w, n, 4096))
    return cases | {"latent stages": Case(_latent), "gather_dequant": Case(_gather)}


def _weight(*shape: int) -> Fp8Weight:
    *lead, rows, columns = shape
    scales = _meta(*lead, -(-rows // 128), columns // 128, dtype=torch.float32)
    return Fp8Weight(_meta(*shape, dtype=torch.float8_e4m3fn), scales)


def _grouped(tokens: int) -> None:
    values, scales = _meta(tokens, 8, 4096, dtype=torch.float8_e4m3fn), _meta(tokens, 8, 32, dtype=torch.float32)
    grouped_linear_fp8(values, scales, _weight(8, 1024, 4096))


def _projections() -> dict[str, Case]:
    cases = {}
    for tokens in (FEW, 64, SOME):
        for rows, columns in ((2112, 7168), (32768, 1024), (4096, 8192)):
            cases[f"linear_fp8 T={tokens} {rows}x{columns}"] = Case(
                lambda t=tokens, n=rows, k=columns: linear_fp8(_meta(t, k), _weight(n, k))
            )
        cases[f"grouped_linear_fp8 T={tokens}"] = Case(lambda t=tokens: _grouped(t))
    return cases


CASES: dict[str, Case] = {**_elementwise(), **_unfused(), **_selection(), **_projections()}
"""Every launch by name. A kernel family adds its own with ``CASES.update``."""
