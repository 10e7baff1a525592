"""What Triton compiles or loads, and when: seconds per kernel, and the sign that a timed window is spoiled."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass
class CompileLog:
    """Kernels that became ready since it was attached, compiled or loaded from the on-disk cache.

    Attributes:
        events: how often a kernel was made ready; any of it inside a timed window spoils the window.
        seconds: kernel name → seconds of compilation proper (a cache hit adds nothing).
        cached_bytes: kernel name → bytes of its compiled artefacts.
    """

    events: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    cached_bytes: dict[str, int] = field(default_factory=dict)

    def since(self, earlier: dict[str, float]) -> dict[str, float]:
        """Seconds per kernel beyond an earlier copy of ``seconds``."""
        gained = {name: value - earlier.get(name, 0.0) for name, value in self.seconds.items()}
        return {name: value for name, value in gained.items() if value > 0}


@contextmanager
def watch_compilation() -> Iterator[CompileLog]:
    """Attach to Triton's compile hooks for a while; without Triton the log stays empty."""
    log = CompileLog()
    if find_spec("triton") is None:
        yield log
        return
    from triton import knobs

    def ready(**_: Any) -> None:
        log.events += 1

    def compiled(*, src: Any, metadata_group: dict[str, str], times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            log.seconds[src.name] = log.seconds.get(src.name, 0.0) + times.total / 1e6
        files = (Path(path) for path in metadata_group.values())
        log.cached_bytes[src.name] = sum(path.stat().st_size for path in files if path.is_file())

    with knobs.runtime.scope(), knobs.compilation.scope():
        knobs.runtime.jit_post_compile_hook = ready
        knobs.compilation.listener = compiled
        yield log
