from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGE_NAMES, STAGES

KEPT = ("_weight", "_bias", "_ape", "_cache", "_state")
SCALARS = {
    "eps", "head_dim", "ratio", "softmax_scale", "index_topk", "indexer_precision", "rope_style", "o_groups",
    "o_precision",
}  # fmt: skip
METADATA = {
    "positions", "token_to_request", "window_slots", "compressed_slots", "state_slots", "block_table",
    "state_block_table", "window_indices", "window_lens", "candidate_lens", "max_candidates", "cos_sin",
    "compressed_entries", "compressed_indices", "compressed_lens",
}  # fmt: skip


def test_every_stage_reads_only_what_an_earlier_stage_wrote_or_the_step_gives():
    for kind, stages in STAGES.items():
        written = set()
        for stage in stages:
            given = {
                n
                for n in stage.reads
                if n.startswith("w_") or n.endswith(("_weight", "_bias", "_ape", "_cache", "_state"))
            }
            missing = stage.reads - written - given - SCALARS - METADATA - {"x", "sink"}
            assert not missing, f"{kind}: {stage.name} reads {missing} before it exists"
            written |= stage.writes


def test_a_stage_updates_only_what_it_is_given():
    for stages in STAGES.values():
        for stage in stages:
            assert set(stage.updates) <= stage.reads
            assert not set(stage.updates) & set(stage.outputs)


def test_every_layer_ends_with_its_output():
    assert all("y" in stages[-1].outputs for stages in STAGES.values())


def test_only_layers_with_an_indexer_score_and_select():
    for kind in LayerKind:
        names = {stage.name for stage in STAGES[kind]}
        assert ("indexer_logits" in names) == kind.has_indexer
        assert ("topk" in names) == kind.has_indexer
        assert ("compressor_state_save" in names) == kind.compresses


def test_stage_names_are_unique_within_a_layer():
    for stages in STAGES.values():
        names = [stage.name for stage in stages]
        assert len(names) == len(set(names))
        assert set(names) <= set(STAGE_NAMES)
