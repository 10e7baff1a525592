"""Fresh inputs go into the buffers of a captured graph; what a graph has baked in may not differ."""

import pytest
import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.graph import refill
from dsv4bench.stack.layer import prepare


@pytest.fixture
def layer(small_shape):
    kind = LayerKind.C4A
    workloads = [Workload("decode", 2, context, 1, "all") for context in (512, 1024)]
    return prepare(small_shape(kind), kind, CachePrecision(), workloads)


def test_refilled_buffers_hold_the_fresh_inputs_at_their_old_addresses(layer):
    workload = Workload("decode", 2, 512, 1, "all")
    buffers, fresh = layer.draw(workload, 1), layer.draw(workload, 2)
    addresses = {name: value.data_ptr() for name, value in buffers.items() if isinstance(value, torch.Tensor)}
    assert not torch.equal(buffers["x"], fresh["x"])
    assert not torch.equal(buffers["block_table"], fresh["block_table"])
    refill(buffers, fresh)
    for name, address in addresses.items():
        # Caches and weights are the layer's own and in both; what is in rows never written (NaN, say) is no matter.
        assert buffers[name] is fresh[name] or torch.equal(buffers[name], fresh[name])
        assert buffers[name].data_ptr() == address


def test_another_length_is_refused(layer):
    buffers = layer.draw(Workload("decode", 2, 512, 1, "all"), 1)
    with pytest.raises(ValueError, match="another shape|is 128 in the captured graph and 256 in the fresh inputs"):
        refill(buffers, layer.draw(Workload("decode", 2, 1024, 1, "all"), 1))
    with pytest.raises(ValueError, match="max_candidates is 128 in the captured graph"):
        refill({"max_candidates": 128}, {"max_candidates": 256})


def test_another_layers_caches_are_refused(layer, small_shape):
    workload = Workload("decode", 2, 512, 1, "all")
    other = prepare(small_shape(LayerKind.C4A), LayerKind.C4A, CachePrecision(), [workload], weights=layer.weights)
    with pytest.raises(ValueError, match="another cache than in the captured graph"):
        refill({"window_cache": layer.draw(workload, 1)["window_cache"]}, other.draw(workload, 1))
