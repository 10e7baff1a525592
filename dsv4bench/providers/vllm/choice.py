"""Variants: which implementation to take where vLLM has several of the same function."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsv4bench.providers import registry
from dsv4bench.providers.vllm.library import Library

VARIANTS = ("", *registry.VARIANTS["vllm"])
"""``vllm`` is what vLLM takes on the card, ``vllm:triton`` and ``vllm:cute`` one of two where both exist."""


@contextmanager
def without_cute(library: Library, variant: str, module: str) -> Iterator[None]:
    """Have a module of vLLM take its Triton kernels, for variant ``triton``; it asks for CuTe at every call."""
    if variant != "triton":
        yield
        return
    owner: Any = sys.modules.get(module) or library.module(module)
    asked = owner.has_cutedsl
    owner.has_cutedsl = _absent
    try:
        yield
    finally:
        owner.has_cutedsl = asked


def _absent() -> bool:
    return False
