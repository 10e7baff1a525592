"""Launch counts: how many kernels, copies and fills a call puts on the device, read off a captured graph.

The profiler could count them too, but a CUPTI client that was once attached is not something to time behind.
"""

import ctypes
from collections.abc import Mapping

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


def count_all(calls: Mapping[str, Call]) -> dict[str, int | None]:
    """Counts by name; none at all once a call can't be captured, since every attempt that fails costs the process."""
    counts: dict[str, int | None] = dict.fromkeys(calls)
    for name, call in calls.items():
        counts[name] = count_launches(call)
        if counts[name] is None:
            break
    return counts


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
