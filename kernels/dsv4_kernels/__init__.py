"""DeepSeek V4 attention kernels: byte formats, a torch reference, Triton and Gluon kernels.

Importing this package loads nothing heavy; torch and Triton come in with the submodules that need them.
"""
