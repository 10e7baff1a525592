"""The GPUs that are known by name: memory for capacity planning, peaks and bandwidth for rooflines.

``memory_bytes`` is what a process sees as the device's total (what engines multiply by their utilization), as printed
by PyTorch on such cards; it lies 1–7 % under the marketing capacity and moves by up to 0.7 % with the driver. Peaks are
the vendor's dense figures, without structured sparsity.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from dsv4bench.errors import UserError

_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU model.

    Attributes:
        name: as on the command line.
        memory_bytes: device memory a process can see.
        memory_bandwidth: bytes per second, nominal.
        bf16_flops: dense bf16 matrix FLOP per second.
        fp8_flops: dense fp8 matrix FLOP per second; 0 where the hardware has none.
        l2_bytes: last cache before memory (L2; Infinity Cache on AMD Instinct).
        sm_count: streaming multiprocessors, or compute units.
        arch: ``sm_90`` or ``gfx942``.
        source: where the figures are from.
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float
    bf16_flops: float
    fp8_flops: float
    l2_bytes: int
    sm_count: int
    arch: str
    source: str

    @property
    def has_fp4_indexer(self) -> bool:
        """Whether the fp4 indexer kernels run there: data-centre Blackwell only."""
        return self.arch in ("sm_100", "sm_103")


def _gpu(
    name: str, gib: float, tb_s: float, bf16: float, fp8: float, l2_mib: int, sms: int, arch: str, source: str
) -> Gpu:
    return Gpu(name, int(gib * _GIB), tb_s * 1e12, bf16 * 1e12, fp8 * 1e12, l2_mib * _MIB, sms, arch, source)


_SEEN = "total memory as printed by PyTorch in public logs"
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # name, GiB, TB/s, bf16, fp8 TFLOP/s, L2 MiB, SMs, arch, source
        _gpu("A100-80G", 79.15, 2.039, 312, 0, 40, 108, "sm_80", f"NVIDIA A100 data sheet (SXM 80 GB); {_SEEN}"),
        _gpu("H100", 79.11, 3.35, 989.4, 1978.9, 50, 132, "sm_90", f"NVIDIA H100 data sheet (SXM); {_SEEN}"),
        _gpu("H200", 139.80, 4.8, 989.4, 1978.9, 60, 132, "sm_90", f"NVIDIA H200 data sheet (SXM); {_SEEN}"),
        _gpu("H200-NVL", 139.80, 4.8, 835.5, 1670.5, 60, 132, "sm_90", "NVIDIA H200 data sheet (NVL); memory as H200"),
        _gpu("H20", 95.00, 4.0, 148, 296, 60, 78, "sm_90", f"NVIDIA H20 figures by OEMs (96 GB); {_SEEN}"),
        _gpu("B200", 178.35, 7.7, 2250, 4500, 126, 148, "sm_100", f"NVIDIA HGX B200 data sheet; {_SEEN}"),
        _gpu("GB200", 184.31, 8.0, 2500, 5000, 126, 152, "sm_100", f"NVIDIA GB200 NVL72 data sheet, per GPU; {_SEEN}"),
        _gpu("B300", 267.69, 8.0, 2250, 4500, 126, 148, "sm_103", f"NVIDIA HGX B300 data sheet; {_SEEN}"),
        _gpu("GB300", 276.50, 8.0, 2500, 5000, 126, 152, "sm_103", f"NVIDIA GB300 NVL72 data sheet, per GPU; {_SEEN}"),
        _gpu("RTX-PRO-6000", 94.97, 1.792, 503.8, 1007.6, 128, 188, "sm_120", f"RTX PRO 6000 Blackwell sheet; {_SEEN}"),
        _gpu(
            "GB10", 119.70, 0.273, 125, 250, 24, 48, "sm_121", f"DGX Spark data sheet (1 PFLOP/s sparse fp4); {_SEEN}"
        ),
        _gpu("MI300X", 191.98, 5.3, 1307.4, 2614.9, 256, 304, "gfx942", f"AMD MI300X data sheet; {_SEEN}"),
        _gpu("MI325X", 255.98, 6.0, 1307.4, 2614.9, 256, 304, "gfx942", f"AMD MI325X data sheet; {_SEEN}"),
        _gpu("MI355X", 287.98, 8.0, 2516.6, 5033.2, 256, 256, "gfx950", f"AMD MI355X data sheet; {_SEEN}"),
    )
}
"""Every known GPU by name."""

DEVICES = {
    "NVIDIA A100-SXM4-80GB": "A100-80G",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA H20": "H20",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB300": "GB300",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000",
    "NVIDIA GB10": "GB10",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X OAM": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI355X": "MI355X",
}
"""Names that drivers give these very cards. One whose name only looks alike is another card: GH200, H100 PCIe and NVL,
H20-3e, the Server and Max-Q editions and every MIG slice have other memory or other peaks."""


def gpu_named(name: str) -> Gpu:
    """A GPU by its name, in any case and with spaces, dashes or underscores.

    Raises:
        UserError: unknown; the message lists the known ones.
    """
    for gpu in GPUS.values():
        if _plain(gpu.name) == _plain(name):
            return gpu
    by_plain_name = {_plain(known): known for known in GPUS}
    close = get_close_matches(_plain(name), by_plain_name, n=1)
    hint = f"did you mean {by_plain_name[close[0]]}? " if close else ""
    raise UserError(f"unknown GPU {name!r}: {hint}known are {', '.join(GPUS)}")


def parse_gpus(text: str) -> tuple[int, Gpu]:
    """``8xH200`` or ``H200``: how many, and which.

    Raises:
        UserError: not of that form, none, or an unknown GPU.
    """
    match = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?([A-Za-z].*)", text.strip())
    count = int(match[1] or 1) if match else 0
    if match is None or count < 1:
        raise UserError(f"--gpu: {text!r} is not of the form 8xH200")
    return count, gpu_named(match[2])


def gpu_of_device(device_name: str) -> Gpu | None:
    """The GPU that a driver's device name such as ``NVIDIA H200`` or ``NVIDIA GB200`` stands for; None if unknown."""
    known = {_plain(device): name for device, name in DEVICES.items()}
    name = known.get(_plain(device_name))
    return GPUS[name] if name else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
