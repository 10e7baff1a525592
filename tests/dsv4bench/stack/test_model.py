"""Models: which layer uses which set of weights and caches."""

from dsv4bench.model.shape import V3_2, V4_FLASH, V4_PRO, LayerKind
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.model import prepare_model, turns

SWA, C4A, C128A = LayerKind.SWA, LayerKind.C4A, LayerKind.C128A


def test_layers_of_a_kind_take_the_sets_in_turn():
    kinds, order = turns([SWA, SWA, C4A, C128A, C4A, C128A, C4A], copies=2)
    assert kinds == [SWA, SWA, C4A, C128A, C4A, C128A]
    assert order == (0, 1, 2, 3, 4, 5, 2)


def test_one_copy_serves_all_layers_of_a_kind():
    kinds, order = turns(V4_PRO.layers, copies=1)
    assert kinds == [C128A, C4A]
    assert [kinds[number] for number in order] == list(V4_PRO.layers)


def test_with_enough_copies_every_layer_has_its_own():
    kinds, order = turns(V4_FLASH.layers, copies=61)
    assert kinds == list(V4_FLASH.layers)
    assert order == tuple(range(43))
    assert len(turns(V3_2.layers, copies=3)[0]) == 3


def test_copies_differ_in_weights_and_caches(small_shape):
    workload = Workload("decode", 1, 256, 1, "all")
    model = prepare_model(small_shape(SWA), [SWA] * 3, 2, CachePrecision(), [workload])
    assert model.order == (0, 1, 0)
    first, second = model.layers
    assert not (first.weights["w_q"] == second.weights["w_q"]).all()
    assert not (first.caches.caches["window_cache"].pages == second.caches.caches["window_cache"].pages).all()
