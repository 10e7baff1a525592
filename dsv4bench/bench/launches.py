"""Launch counts: how many kernels, copies and fills a call puts on the device, read off a captured graph.

The profiler could count them too, but a CUPTI client that was once attached is not something to time behind.
"""

import ctypes

from dsv4bench.bench.timers import Call

DEVICE_WORK = frozenset({0, 1, 2})
"""CUgraphNodeType: kernel, memcpy, memset."""


def count_launches(call: Call) -> int | None:
    """Device operations of one call; ``None`` where it can't be captured or the driver's library isn't here."""
    import torch

    from dsv4bench.stack.graph import capture

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        graph = capture(call, keep=True)
        raw = ctypes.c_void_p(graph.raw_cuda_graph())
    except (OSError, RuntimeError, AttributeError, TypeError):
        torch.cuda.synchronize()
        return None
    return sum(kind in DEVICE_WORK for kind in _node_types(driver, raw))


def _node_types(driver: ctypes.CDLL, graph: ctypes.c_void_p) -> list[int]:
    count = ctypes.c_size_t()
    driver.cuGraphGetNodes(graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count))
    types = []
    for node in nodes:
        kind = ctypes.c_int(-1)
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        types.append(kind.value)
    return types
