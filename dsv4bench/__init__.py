"""dsv4bench: benchmark, verify and size the DeepSeek V4 attention stack."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dsv4bench")
except PackageNotFoundError:  # a plain checkout on PYTHONPATH
    __version__ = "0+checkout"
