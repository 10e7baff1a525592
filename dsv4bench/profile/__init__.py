"""Profiles: kernels to stages, timelines."""
