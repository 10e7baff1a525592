"""Triton kernels of the attention stack."""
