"""Comparing what a stage returned: most outputs are activations, the others each have their own notion of equal."""

from collections.abc import Callable
from typing import Any

import torch
from dsv4_kernels import reference
from dsv4_kernels.codec import dequantize_fp4, scale_exponents

from dsv4bench.verify.bf16_keys import attend_bf16_keys, attends_latents, named
from dsv4bench.verify.difference import (
    ACCUMULATION_TOLERANCE,
    LOGIT_TOLERANCE,
    LSE_TOLERANCE,
    ROW_TOLERANCE,
    SELECTION_TOLERANCE,
    Difference,
    activation_difference,
    describe,
    exact,
    row_difference,
)
from dsv4bench.verify.pinpoint import reach
from dsv4bench.verify.quantised import INDEX_QUERY, OUTPUT, quantised_difference, scales_of
from dsv4bench.verify.selection import judge_selection

Outputs = tuple[Any, ...]
Comparer = Callable[[dict[str, Any], Outputs, Outputs, torch.Tensor], list[Difference]]
"""Arguments, the provider's outputs, the reference's, token numbers → differences."""

_WEIGHT_TOLERANCE = 1e-5
"""Head weights: two or three fp32 products, relative to the row's maximum."""
_SUM = 5
"""Sums of many fp32 terms (logits, the softmax denominator) may err by this many times a product's tolerance."""
_ENTRIES_FOR_TERMS = 256
_ACTIVATIONS = ("x", "q", "o", "kv_score", "index_q", "q_latent", "qkv_latent", "kv", "index_k", "o_values")


def computed_in(arguments: dict[str, Any]) -> torch.dtype:
    """The dtype that decides tolerances: of the stage's activations."""
    dtypes: list[torch.dtype] = [arguments[n].dtype for n in _ACTIVATIONS if arguments.get(n) is not None]
    return dtypes[0] if dtypes else torch.float32


def compare_outputs(
    name: str, arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor
) -> list[Difference]:
    """Compare the outputs of a stage; all tensors hold the same tokens, whose numbers ``tokens`` gives."""
    return _COMPARERS.get(name, _activations)(arguments, actual, expected, tokens)


def _activations(
    arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor
) -> list[Difference]:
    dtype, found = computed_in(arguments), []
    for got, want in zip(actual, expected, strict=True):
        dims = ("token", "head")[: got.dim() - 1]
        if got.dtype == torch.float32 and dtype not in ROW_TOLERANCE:
            found.append(row_difference("output", got, want, ACCUMULATION_TOLERANCE, dims, tokens))
        else:
            found.append(activation_difference("output", got, want, dtype, dims, tokens))
    return found


def _index_query(
    arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor
) -> list[Difference]:
    values, scales, weights = actual
    exact_values, _, exact_weights = expected
    precision, dims = arguments["precision"], ("token", "head")
    if precision == "fp8":
        exponents = _folded_exponents(weights, exact_weights, exact_values)
        weights = torch.ldexp(weights, -exponents)
        exponents = exponents.unsqueeze(-1)
        found = quantised_difference(
            "index q",
            torch.ldexp(values.float(), exponents),
            scales_of(exponents),
            exact_values,
            INDEX_QUERY["fp8"],
            dims,
            tokens,
        )
    elif precision == "fp4":
        exponents = scales.int() - 127
        dequantised, stored = dequantize_fp4(values, exponents), scales_of(exponents)
        found = quantised_difference("index q", dequantised, stored, exact_values, INDEX_QUERY["fp4"], dims, tokens)
    else:
        found = activation_difference("index q", values, exact_values, values.dtype, dims, tokens)
    return [found, row_difference("index weights", weights, exact_weights, _WEIGHT_TOLERANCE, labels=tokens)]


def _folded_exponents(weights: torch.Tensor, exact: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Exponents of the query scales that were multiplied into the head weights, int32 [T, HI].

    A weight of zero hides its scale, and then nothing depends on it: take the right one.
    """
    quantiser = INDEX_QUERY["fp8"]
    right = scale_exponents(values.to(torch.bfloat16).abs().amax(-1), quantiser.largest, quantiser.floor)
    ratio = weights / torch.where(exact != 0, exact, 1.0)
    exponents = torch.where(ratio > 0, ratio, 2.0**-1000).log2().round().int()
    return torch.where(exact != 0, exponents, right)


def _logits(arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor) -> list[Difference]:
    want = expected[0]
    visible = torch.arange(want.shape[1], device=want.device) < arguments["candidate_lens"][:, None]
    # what lies beyond the candidates may be anything, NaN included
    got = torch.where(visible, actual[0][:, : want.shape[1]], 0.0)
    want = torch.where(visible, want, 0.0)
    queries, cache = arguments["index_q_values"], arguments["indexer_cache"]
    full = queries.dtype in ROW_TOLERANCE and cache.format.precision in ("fp32", "fp64")
    tolerance = _SUM * ROW_TOLERANCE[queries.dtype] if full else LOGIT_TOLERANCE
    # terms of both signs cancel in a logit, and few logits may all be small: errors are measured against the terms
    return [row_difference("logits", got, want, tolerance, labels=tokens, scale=_terms(arguments))]


def _terms(arguments: dict[str, Any]) -> torch.Tensor:
    """Each row's largest sum of its terms' magnitudes, [T]; of its first entries, as it hardly varies with more."""
    width = max(1, min(arguments["max_candidates"], _ENTRIES_FOR_TERMS))
    changes = {"index_weights": arguments["index_weights"].abs(), "max_candidates": width}
    return reference.indexer_logits(**(arguments | changes)).amax(-1).clamp_min(0.0)


def _topk(arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor) -> list[Difference]:
    """Every selected index once, in range, as many as there are; none beaten by an unselected one beyond tolerance."""
    chosen = actual[0].long()
    selection = judge_selection(chosen, arguments["logits"], arguments["candidate_lens"])
    complete, beaten, lens = selection.complete, selection.beaten, selection.lens
    found = [exact("indices", bool(complete.all()), _first(~complete, tokens, lambda row: _fault(chosen, lens, row)))]
    if not beaten.numel() or not int(lens.max()):
        return found
    flat = int(beaten.argmax())
    error, where = float(beaten[flat]), describe(flat, beaten.shape, ("token",), tokens)
    numbers = {"selection_recall": _recall(chosen, expected[0], lens.clamp_max(arguments["k"]))}
    detail = ""
    if error > SELECTION_TOLERANCE:
        left, taken = int(selection.left_out[flat].argmax()), int(selection.taken[flat].argmin())
        detail = (
            f"index {left} (logit {float(selection.left_out[flat, left]):.6g}) was left out for index {taken} "
            f"(logit {float(selection.taken[flat, taken]):.6g})" + reach(beaten, SELECTION_TOLERANCE, "tokens")
        )
    return [*found, Difference("selection", error, SELECTION_TOLERANCE, where, numbers, detail=detail)]


def _fault(chosen: torch.Tensor, lens: torch.Tensor, row: int) -> str:
    """What is wrong with a row of top-k indices."""
    indices, visible = chosen[row].tolist(), int(lens[row])
    due = min(visible, len(indices))
    rule = f"expected {due} of its {visible} candidates, each once" + (", then -1" if due < len(indices) else "")
    head, tail = indices[:due], indices[due:]
    for place, index in enumerate(head):
        if not 0 <= index < visible:
            return f"indices[{place}] is {index}; {rule}"
        if index in head[:place]:
            return f"indices[{place}] is {index}, as is indices[{head.index(index)}]; {rule}"
    place = next(i for i, index in enumerate(tail, due) if index != -1)
    return f"indices[{place}] is {indices[place]}; {rule}"


def _recall(chosen: torch.Tensor, right: torch.Tensor, count: torch.Tensor) -> float:
    """Smallest share of a row's right indices that were chosen."""
    shares = [
        len(set(a[:n].tolist()) & set(b[:n].tolist())) / n
        for a, b, n in zip(chosen.cpu(), right.cpu(), count.tolist(), strict=True)
        if n
    ]
    return min(shares, default=1.0)


def _index_map(arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor) -> list[Difference]:
    """The same slots within the scanned length; their order is free."""
    slots, lens = actual
    want, _ = expected
    column = torch.arange(slots.shape[1], device=slots.device)
    scanned = torch.where(column < lens[:, None], slots, -1).clamp_min(-1)
    wrong = (scanned.sort(dim=1).values != want.sort(dim=1).values).any(1)

    def fault(row: int) -> str:
        got, due = set(scanned[row].tolist()) - {-1}, set(want[row].tolist()) - {-1}
        extra, missing = (", ".join(map(str, sorted(some)[:3])) for some in (got - due, due - got))
        parts = [f"the slots of its {len(due)} indices within the first {int(lens[row])}, each once"]
        parts += [f"{missing} missing"] * bool(missing) + [f"{extra} none of them"] * bool(extra)
        return "expected " + "; ".join(parts)

    return [exact("slots", not bool(wrong.any()), _first(wrong, tokens, fault))]


def _attention(arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor) -> list[Difference]:
    found = _attended(arguments, actual, expected, tokens)
    if all(difference.ok for difference in found) or not attends_latents(arguments):
        return found
    return named(found, _attended(arguments, actual, attend_bf16_keys(arguments), tokens))


def _attended(arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor) -> list[Difference]:
    (out, lse), (want, want_lse) = actual, expected
    dtype, dims = arguments["q"].dtype, ("token", "head")
    empty = want_lse == -torch.inf
    error = torch.where(empty, torch.where(lse == -torch.inf, 0.0, torch.inf), (lse - want_lse).abs())
    error = error.double().nan_to_num(torch.inf, posinf=torch.inf)
    tolerance = LSE_TOLERANCE if dtype not in ROW_TOLERANCE else _SUM * ROW_TOLERANCE[dtype]
    flat = int(error.argmax()) if error.numel() else 0
    worst = float(error.flatten()[flat]) if error.numel() else 0.0
    where = describe(flat, error.shape, dims, tokens) if error.numel() else ""
    detail = ""
    if worst > tolerance:
        got, right = float(lse.flatten()[flat]), float(want_lse.flatten()[flat])
        detail = f"it is {got:.6g}, expected {right:.6g}" + reach(error, tolerance)
    return [
        activation_difference("o", out, want, dtype, dims, tokens),
        Difference("lse", worst, tolerance, where, {"lse_error": worst}, detail=detail),
    ]


def _output_quant(
    arguments: dict[str, Any], actual: Outputs, expected: Outputs, tokens: torch.Tensor
) -> list[Difference]:
    values, scales = actual
    dims = ("token", "group")
    if scales is None:
        return [activation_difference("o_values", values, expected[0], computed_in(arguments), dims, tokens)]
    dequantised = (torch.unflatten(values.float(), -1, (-1, OUTPUT.block)) * scales.unsqueeze(-1)).flatten(-2)
    return [quantised_difference("o_values", dequantised, scales, expected[0], OUTPUT, dims, tokens)]


def _first(wrong: torch.Tensor, tokens: torch.Tensor, fault: Callable[[int], str]) -> str:
    """The first wrong row in words, and how many there are; ``fault`` says what is wrong with a row."""
    if not bool(wrong.any()):
        return ""
    row, count = int(wrong.int().argmax()), int(wrong.sum())
    more = f"; {count} of {len(wrong)} tokens are wrong" if len(wrong) > 1 else ""
    return f"token {int(tokens[row])}: {fault(row)}{more}"


_COMPARERS: dict[str, Comparer] = {
    "indexer_query_rope_quant": _index_query,
    "indexer_logits": _logits,
    "topk": _topk,
    "index_map": _index_map,
    "sparse_attention": _attention,
    "inverse_rope_quant": _output_quant,
}
