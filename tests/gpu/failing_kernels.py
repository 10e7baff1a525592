"""Providers whose kernels break the context or ask for too much."""

import torch
import triton
import triton.language as tl

from dsv4bench.providers.eager import EagerProvider


@triton.jit
def far_store(pointer, offset):
    tl.store(pointer + offset, 1)


class IllegalAccess(EagerProvider):
    name = "illegal-access"

    def qkv_norm(self, **arguments):
        x = torch.empty(1, dtype=torch.int32, device="cuda")
        far_store[(1,)](x, 1 << 45)
        return super().qkv_norm(**arguments)


class Hungry(EagerProvider):
    name = "hungry"

    def qkv_norm(self, **arguments):
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        return super().qkv_norm(**arguments)
