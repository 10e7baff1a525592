"""Checking stages after they ran: what they returned and wrote, against the reference on the same inputs.

A check needs only the stage's arguments and outputs, so the conformance suite and the bench share it. Caches are never
copied, and of a long step only a sample of the tokens is compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from dsv4_kernels import reference

from dsv4bench.model.stage import Stage
from dsv4bench.results.row import Accuracy
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import stage_arguments
from dsv4bench.verify.difference import Difference, exact, worst
from dsv4bench.verify.entries import WRITES, compare_writes, with_shadow
from dsv4bench.verify.outputs import Outputs, compare_outputs, computed_in

_Item = TypeVar("_Item")

TOKEN_PARAMETERS = frozenset({
    "x", "qkv_latent", "q_latent", "q", "kv", "positions", "window_slots", "kv_score", "state_slots",
    "token_to_request", "compressed_slots", "index_q", "head_weights", "index_q_values", "index_q_scales",
    "index_weights", "candidate_lens", "logits", "topk_indices", "window_indices", "window_lens",
    "compressed_indices", "compressed_lens", "o", "o_values", "o_scales", "q_absorbed", "index_k", "slots",
})  # fmt: skip
"""Parameters whose first dim is the step's tokens."""
LONG_CONTEXT = 65_536
"""Sequence length above which at most ``LONG_REQUESTS`` requests are compared."""
LONG_REQUESTS = 4
SAMPLED_TOKENS = {"cuda": 256, "cpu": 32}
"""Tokens of a step that are compared, by device type."""


MOST_KEPT = 2**28
"""Bytes of an input up to which it is kept to see whether the stage leaves it alone."""
_QUANTISED: dict[str, dict[str, tuple[torch.dtype | None, ...]]] = {
    "indexer_query_rope_quant": {
        "fp8": (torch.float8_e4m3fn, None, torch.float32),
        "fp4": (torch.uint8, torch.uint8, torch.float32),
    },
    "inverse_rope_quant": {"fp8": (torch.float8_e4m3fn, torch.float32)},
}
"""Dtypes of quantised outputs by stage and precision, None where any will do; the reference's of other stages."""


@dataclass(frozen=True)
class StageCheck:
    """What the comparison of a stage found.

    Attributes:
        stage: its name.
        differences: of each output and cache that it writes.
    """

    stage: str
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether every difference is within its tolerance."""
        return all(difference.ok for difference in self.differences)

    @property
    def worst(self) -> Difference:
        """The difference furthest beyond (or nearest to) its tolerance."""
        return worst(self.differences)

    @property
    def numbers(self) -> dict[str, float]:
        """Accuracy figures of all outputs, the worse one where two have the same name."""
        numbers: dict[str, float] = {}
        for difference in self.differences:
            for name, value in difference.numbers.items():
                pick = max if name.endswith("error") else min
                numbers[name] = pick(numbers.get(name, value), value)
        return numbers

    @property
    def accuracy(self) -> Accuracy:
        """The worst error as a row of results stores it.

        Only for a stage that is ``ok``: a stored number is finite.
        """
        return Accuracy(worst_error=self.worst.error, tolerance=self.worst.tolerance, numbers=self.numbers)

    @property
    def sentence(self) -> str:
        """What is wrong, by how much, where, and what would be right."""
        return f"{self.stage}: {self.worst.sentence}"


def check_stages(stages: Iterable[Stage], values: Values) -> dict[str, StageCheck]:
    """Compare every stage's outputs, which lie in ``values`` beside its inputs, with the reference.

    Work is bounded: ``sample_tokens`` decides which tokens are compared.

    Args:
        stages: stages that have run, in any order.
        values: tensors of the layer by name, after they ran.

    Returns:
        check by stage name.
    """
    tokens = sample_tokens(values)
    return {stage.name: check_stage(stage, values, tokens) for stage in stages}


def check_stage(stage: Stage, values: Values, tokens: torch.Tensor | None = None) -> StageCheck:
    """Compare one stage's outputs, which lie in ``values`` beside its inputs; all tokens unless told which."""
    outputs = tuple(values[name] for name in stage.outputs)
    return compare(stage.name, stage_arguments(stage, values), outputs, tokens)


def compare(name: str, arguments: dict[str, Any], outputs: Outputs, tokens: torch.Tensor | None = None) -> StageCheck:
    """Compare what a stage returned, and wrote into the caches among its arguments, with the reference.

    Args:
        name: stage name.
        arguments: keyword arguments that it was called with.
        outputs: what it returned, as a tuple.
        tokens: int64 token numbers to compare; all by default.
    """
    if tokens is None:
        first = next(v for k, v in arguments.items() if k in TOKEN_PARAMETERS and v is not None)
        tokens = torch.arange(len(first), device=first.device)
    arguments = {k: v[tokens] if k in TOKEN_PARAMETERS and v is not None else v for k, v in arguments.items()}
    found: list[Difference] = []
    if name in WRITES:
        shadowed, shadow = with_shadow(name, arguments)
        expected = _run_reference(name, shadowed)
        found += compare_writes(name, arguments, shadow, tokens)
    else:
        expected = _run_reference(name, arguments)
    if outputs:
        actual = tuple(v[tokens] if isinstance(v, torch.Tensor) else v for v in outputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        form = _form(name, arguments, actual, expected)
        if form:
            return StageCheck(name, (*found, *form))
        try:
            found += compare_outputs(name, arguments, actual, expected, tokens)
        except ValueError as error:
            found.append(exact("output", False, str(error)))
    return StageCheck(name, tuple(found))


def kept_inputs(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Copies of the tensors that a stage must not change; caches, whose pages may share memory, and large ones aside.

    Args:
        arguments: keyword arguments that it is about to be called with.
    """
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) and not name.endswith("cache") and value.nbytes <= MOST_KEPT
    }


def overwritten_inputs(arguments: Mapping[str, Any], before: Mapping[str, torch.Tensor]) -> Difference | None:
    """What is wrong if any of a stage's inputs is no longer what it was before the stage ran."""
    name = next(changed_inputs(arguments, before), None)
    if name is None:
        return None
    return exact("inputs", False, f"the stage has overwritten its input {name}; inputs are only read")


def changed_inputs(arguments: Mapping[str, Any], before: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Names of inputs that are no longer what ``kept_inputs`` kept of them."""
    for name, kept in before.items():
        if not torch.equal(arguments[name].contiguous().view(torch.uint8), kept.view(torch.uint8)):
            yield name


def _form(name: str, arguments: Mapping[str, Any], actual: Outputs, expected: Outputs) -> list[Difference]:
    """Outputs of another dtype or shape than the contract's, which docs/stages.md gives."""
    due: list[tuple[Any, torch.dtype | None, torch.Size | None]]
    if name in _QUANTISED:
        dtypes = _QUANTISED[name].get(arguments["precision"], ())
        due = [(got, dtype, None) for got, dtype in zip(actual, dtypes, strict=False)]
    else:
        due = [(got, want.dtype, want.shape) for got, want in zip(actual, expected, strict=False)]
    found = []
    for got, dtype, shape in due:
        if not isinstance(got, torch.Tensor) or dtype is None:
            continue
        wide = name == "indexer_logits" and got.dim() == 2 and shape is not None and got.shape[1] >= shape[1]
        if got.dtype != dtype or not (shape is None or wide or got.shape == shape):
            right = f"{_named(dtype)} {list(got.shape if shape is None or wide else shape)}"
            found.append(exact("output", False, f"returned {_named(got.dtype)} {list(got.shape)}, expected {right}"))
    return found


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _run_reference(name: str, arguments: dict[str, Any]) -> Any:
    """The reference's result before any quantisation."""
    key = {"indexer_query_rope_quant": "index_q", "inverse_rope_quant": "o"}.get(name)
    if key:
        wide = torch.float64 if computed_in(arguments) == torch.float64 else torch.float32
        precision = "fp64" if wide == torch.float64 else "fp32"
        arguments = arguments | {key: arguments[key].to(wide), "precision": precision}
    return getattr(reference, name)(**arguments)


def sample_tokens(values: Values) -> torch.Tensor:
    """Tokens of a step to compare, int64 on the step's device: all of a short step, else evenly chosen ones.

    Each chosen request's first and last tokens are among them, and tokens that complete compressed entries. Beyond
    64K of context at most four requests take part.
    """
    start, lens = values["query_start"].tolist(), values["seq_lens"].tolist()
    device = values["positions"].device
    limit = SAMPLED_TOKENS.get(device.type, SAMPLED_TOKENS["cuda"])
    long = max(lens, default=0) > LONG_CONTEXT
    if start[-1] <= limit and not long:
        return torch.arange(start[-1], device=device)
    spans = [range(start[r], start[r + 1]) for r in range(len(lens)) if start[r + 1] > start[r]]
    spans = _spread(spans, LONG_REQUESTS if long else limit)
    share = max(2, limit // max(len(spans), 1))
    chosen = {token for span in spans for token in _spread(span, share)}
    slots = values.get("compressed_slots")
    if slots is not None and len(chosen) < start[-1]:
        completing = [t for t in torch.nonzero(slots >= 0).flatten().tolist() if any(t in span for span in spans)]
        chosen |= set(_spread(completing, share))
    return torch.tensor(sorted(chosen), dtype=torch.long, device=device)


def _spread(items: Sequence[_Item], count: int) -> list[_Item]:
    """At most ``count`` of the items, evenly spread, both ends included."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
