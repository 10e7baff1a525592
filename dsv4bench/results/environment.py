"""Where numbers came from: the machine, the card and the software, as a run stores them."""

from pydantic import Field

from dsv4bench.results.row import Model


class Gpu(Model):
    """One graphics card as NVML and the CUDA runtime describe it; what neither says is ``None``."""

    name: str
    uuid: str | None = None
    index: int | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    compute_capability: str | None = None
    vbios: str | None = None
    ecc: bool | None = None
    mig: bool | None = None
    power_limit_w: float | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None

    @property
    def slug(self) -> str:
        """The name as a folder: ``NVIDIA H100 80GB HBM3`` becomes ``h100-80gb-hbm3``."""
        words = self.name.lower().removeprefix("nvidia").replace("_", " ").split()
        return "-".join("".join(c for c in word if c.isalnum() or c in ".-") for word in words)


class GpuProcess(Model):
    """Another process on the card: its name without its path, and the memory it holds there."""

    name: str
    memory_bytes: int | None = None


class Environment(Model):
    """Everything about the machine that helps to explain a number; never a path or a secret."""

    release: str
    """Version of dsv4bench."""
    python: str
    platform: str
    cpu: str | None = None
    cpu_count: int | None = None
    torch: str | None = None
    triton: str | None = None
    vllm: str | None = None
    cuda: str | None = None
    """CUDA runtime that torch was built with."""
    driver: str | None = None
    gpu: Gpu | None = None
    git_sha: str | None = None
    git_dirty: str | None = None
    """Digest of the uncommitted changes; ``None`` for a clean tree."""
    variables: dict[str, str] = Field(default_factory=dict)
    """``VLLM_* TRITON_* CUDA_* NCCL_*``, names with KEY, TOKEN, SECRET or PASSWORD dropped."""
    processes: list[GpuProcess] = Field(default_factory=list)
    """Other processes on the card when the run began."""
