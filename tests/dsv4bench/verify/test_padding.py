"""A provider whose only fault is what it does for padding fails the row about it, whichever stage it is."""

import pytest
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache

from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.reference import ReferenceProvider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.verify.entries import WRITES
from dsv4bench.verify.rows.padding import CONTEXTS, PADDED, padding_tokens
from dsv4bench.verify.suite import ROWS, Status, run_row
from dsv4bench.verify.trial import Setting, Trial
from tests.dsv4bench.verify.mutants import changed, provider

WRITERS = [(kind, stage.name) for kind in LayerKind for stage in STAGES[kind] if stage.name in WRITES]


def outcome(mutant, kind, cache="fp8+fp8"):
    return run_row(mutant, ROWS[6], Setting(kind, CachePrecision(*cache.split("+")), quick=True))


def found(mutant, kind):
    trial = Trial(mutant, Setting(kind, quick=True))
    padding_tokens(trial)
    return [check.sentence for check in trial.checks if not check.ok]


@pytest.mark.parametrize("cache", ["fp8+fp8", "fp8+fp4", "bf16+bf16"])
@pytest.mark.parametrize(("kind", "stage"), WRITERS)
def test_writing_slot_0_for_minus_1_fails(kind, stage, cache):
    slots = WRITES[stage][1]
    failed = outcome(changed(stage, lambda a: {slots: a[slots].clamp_min(0)}), kind, cache)
    assert failed.status is Status.FAIL
    fault = "page 0: bytes outside the given slots; −1 is given too and means that nothing is written"
    assert failed.reason == f"{stage}: stray writes: {fault}"


@pytest.mark.parametrize(("kind", "stage"), WRITERS)
def test_writing_the_last_slot_for_minus_1_fails(kind, stage):
    slots = WRITES[stage][1]

    def last(arguments):
        cache = arguments[WRITES[stage][0]]
        count = cache.num_slots if isinstance(cache, PagedCache) else cache.shape[0] * cache.shape[1]
        return {slots: arguments[slots].where(arguments[slots] >= 0, count - 1)}

    assert "stray writes" in outcome(changed(stage, last), kind).reason


@pytest.mark.parametrize(("kind", "stage"), WRITERS)
def test_writing_before_the_cache_for_minus_1_fails(kind, stage):
    """As a kernel does whose slots are divided by the page size without a look at their sign."""

    def run(**arguments):
        cache, slots = (arguments[name] for name in WRITES[stage])
        raw = cache.pages if isinstance(cache, PagedCache) else cache
        if bool((slots < 0).any()) and raw.storage_offset():
            raw.as_strided((8,), (1,), raw.storage_offset() - 8).fill_(3)
        return getattr(reference, stage)(**arguments)

    assert found(provider(**{stage: run}), kind) == [f"{stage}: stray writes: bytes before the first page of the cache"]


@pytest.mark.parametrize("kind", LayerKind)
def test_attending_the_own_slot_of_a_padding_token_fails(kind):
    name = "compressed" if kind is LayerKind.DSA else "window"

    def attend(arguments):
        indices, lens = arguments[f"{name}_indices"].clone(), arguments[f"{name}_lens"]
        indices[:, 0] = indices[:, 0].clamp_min(0)
        return {f"{name}_indices": indices, f"{name}_lens": lens.clamp_min(1)}

    (sentence,) = found(changed("sparse_attention", attend), kind)
    assert sentence.startswith("sparse_attention: ")
    assert sentence.split("token ")[1][0] == "0"


@pytest.mark.parametrize("kind", [LayerKind.C4A, LayerKind.DSA])
def test_selecting_something_for_a_padding_token_fails(kind):
    def select(**arguments):
        chosen = reference.topk(**arguments)
        chosen[:, 0] = chosen[:, 0].clamp_min(0)
        return chosen

    (sentence,) = found(provider(topk=select), kind)
    assert sentence.startswith("topk: indices: token 0: indices[0] is 0; expected 0 of its 0 candidates")


@pytest.mark.parametrize("kind", LayerKind)
def test_a_request_owns_page_0_of_every_cache_and_reads_its_slot_0(kind):
    """What lies there is what a step of the first request alone reads first."""
    seen = {}

    class Spying(ReferenceProvider):
        def compress_norm_rope_insert(self, *, state_cache, state_block_table, positions, token_to_request, **rest):
            first = positions.max() - (7 if rest["ratio"] == 4 else 127)
            seen["state"] = state_block_table[0, first // state_cache.shape[1]], first % state_cache.shape[1]
            reference.compress_norm_rope_insert(
                state_cache=state_cache, state_block_table=state_block_table, positions=positions,
                token_to_request=token_to_request, **rest,
            )  # fmt: skip

        def indexer_logits(self, **arguments):
            seen["entries"] = arguments["block_table"][0, 0]
            return reference.indexer_logits(**arguments)

        def sparse_attention(self, **arguments):
            for name in ("window", "compressed"):
                if arguments[f"{name}_indices"] is not None:
                    seen[name] = (arguments[f"{name}_indices"][PADDED.index(0)] == 0).any()
            return reference.sparse_attention(**arguments)

    padding_tokens(Trial(Spying(), Setting(kind, quick=True)))
    if kind is LayerKind.DSA:  # of 256 entries 64 are attended, but the indexer reads them all
        del seen["compressed"]
    assert seen.pop("state", (0, 0)) == (0, 0)
    assert seen.pop("entries", 0) == 0
    assert all(seen.values())


def test_padding_stands_before_between_and_behind_real_tokens():
    assert PADDED[0] == PADDED[-1] == -1
    assert sorted(request for request in PADDED if request >= 0) == list(range(len(CONTEXTS)))
    assert -1 in PADDED[1:-1]
