"""dsv4bench: benchmark, verify and size the DeepSeek V4 attention stack."""


def __getattr__(name: str) -> str:
    """``__version__``, looked up when it is asked for: reading package metadata costs a tenth of a start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dsv4bench")
    except PackageNotFoundError:  # a plain checkout on PYTHONPATH
        return "0+checkout"
