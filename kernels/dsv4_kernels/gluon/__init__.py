"""Gluon kernels: forms that place data in registers and shared memory by hand, for one GPU generation each."""
