"""The device a run measures on, as facts that a parent process can hold without touching CUDA itself."""

import re
from dataclasses import dataclass, field

from dsv4bench.errors import UserError


@dataclass(frozen=True)
class Device:
    """What a worker found.

    Attributes:
        type: ``cpu`` or ``cuda``.
        index: ordinal among the visible devices; 0 on a CPU.
        name: the card's name; empty on a CPU.
        uuid: ``GPU-…``, by which NVML finds the same card; empty on a CPU.
        l2_bytes: size of the L2 cache; 0 where it is unknown.
        sm_count: streaming multiprocessors; 0 on a CPU.
        memory_bytes: device memory; 0 on a CPU.
        capability: compute capability as ``9.0``; empty on a CPU.
        versions: ``torch``, ``cuda`` and ``triton`` as the worker imported them.
        timers: timer name → why it is not available here, empty if it is.
    """

    type: str
    index: int = 0
    name: str = ""
    uuid: str = ""
    l2_bytes: int = 0
    sm_count: int = 0
    memory_bytes: int = 0
    capability: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    timers: dict[str, str] = field(default_factory=dict)

    @property
    def torch_name(self) -> str:
        """The name torch knows it by: ``cpu``, ``cuda:0``."""
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"


def parse_device(text: str) -> tuple[str, int | None]:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1`` as (type, index or None).

    Raises:
        UserError: anything else.
    """
    kind, _, index = text.partition(":")
    if kind in ("auto", "cpu") and not index:
        return kind, None
    if kind == "cuda" and re.fullmatch("[0-9]{0,4}", index):
        return kind, int(index) if index else None
    raise UserError(f"--device {text}: expected auto, cpu, cuda or cuda:N")


def find_device(text: str) -> Device:
    """Resolve a ``--device`` text in this process (imports torch).

    Raises:
        UserError: a GPU was asked for that is not here.
    """
    import torch

    kind, index = parse_device(text)
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    # plain text: the parent would import torch, for seconds, to unpickle torch's own class of versions
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "triton": _triton_version()}
    if kind == "cpu":
        return Device("cpu", versions=versions)
    if not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; use --device cpu or see `dsv4bench doctor`")
    index = torch.cuda.current_device() if index is None else index
    if index >= torch.cuda.device_count():
        raise UserError(f"--device cuda:{index}: only {torch.cuda.device_count()} GPU(s) here")
    card = torch.cuda.get_device_properties(index)
    return Device(
        "cuda",
        index,
        card.name,
        uuid=f"GPU-{card.uuid}" if getattr(card, "uuid", None) else "",
        l2_bytes=int(getattr(card, "L2_cache_size", 0)),
        sm_count=card.multi_processor_count,
        memory_bytes=card.total_memory,
        capability=f"{card.major}.{card.minor}",
        versions=versions,
    )


def use_device(name: str) -> None:
    """Make a GPU, by torch's name, the one that this process launches kernels on; nothing on a CPU."""
    if name != "cpu":
        import torch

        torch.cuda.set_device(name)


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)
