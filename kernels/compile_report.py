"""Compile every kernel for sm_90 and sm_100 without a GPU; print registers, spills and shared memory; fail on spills.

It fails as well on a hazard that the compiler leaves in kernels with warp specialisation (`handed_over_early`).

The launchers themselves run, on meta tensors, under a driver that compiles but does not launch: what is reported is
what would be launched, with its tiles and options. Register and spill counts are read from the binaries.

    python kernels/compile_report.py [--arch 90] [--only NAME]
"""

# ruff: noqa: T201
import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import triton
from compile_cases import CASES
from triton.backends.compiler import GPUTarget

ARCHES = (90, 100)
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes.

    Attributes:
        kernel: function name.
        arch: compute capability, 90 for sm_90.
        registers: per thread.
        stack: bytes of stack per thread.
        spills: bytes of local memory per thread that the assembler spilled to.
        shared: bytes of shared memory per program.
        warps: warps per program.
        early: `handed_over_early`.
    """

    kernel: str
    arch: int
    registers: int
    stack: int
    spills: int
    shared: int
    warps: int
    early: bool


class _Launcher:
    """Stands in for the launch of a compiled kernel."""

    def __init__(self, source: object, metadata: object) -> None:
        pass

    def __call__(self, *arguments: object) -> None:
        pass


class _Utils:
    """Stands in for loading a binary; the sizes are those of an H200."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 0, 0, 0, 0, 1024


class CompileOnlyDriver:
    """A Triton driver for a GPU that is not there: launches compile, record the binary, and do nothing else."""

    launcher_cls = _Launcher
    utils = _Utils()

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        """The target compiled for."""
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        """The arch doubles as device number, since Triton caches kernels per device."""
        return self.arch

    def get_current_stream(self, device: int) -> int:
        """The null stream."""
        return 0


@contextmanager
def compiled_kernels(arch: int) -> Iterator[list[object]]:
    """Collect the kernels that launchers compile for ``arch`` inside the block."""
    found: list[object] = []
    original = triton.compiler.CompiledKernel._init_handles

    def record(kernel: object) -> None:
        if getattr(kernel, "module", None) is None:
            found.append(kernel)
        original(kernel)

    triton.runtime.driver.set_active(CompileOnlyDriver(arch))
    triton.compiler.CompiledKernel._init_handles = record
    try:
        yield found
    finally:
        triton.compiler.CompiledKernel._init_handles = original
        triton.runtime.driver._active = None


def resources(kernel: object, arch: int) -> Resources:
    """Read what a compiled kernel takes out of its binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _run(_CUOBJDUMP, "--dump-resource-usage", file.name)
    field = dict(re.findall(r"(\w+)(?:\[\d\])?:(\d+)", usage))
    shared = kernel.metadata.shared
    local = int(field["LOCAL"])
    stack = int(field["STACK"])
    early = handed_over_early(kernel.asm["ptx"])
    return Resources(
        kernel.name, arch, int(field["REG"]), stack, local + stack, shared, kernel.metadata.num_warps, early
    )


def handed_over_early(ptx: str) -> bool:
    """Whether partitions may be handed their arguments in shared memory that a warp is still to read.

    Triton 3.6 puts what a kernel passes to the partitions of ``warp_specialize`` where it exchanged values between
    warps before, as for a sum or a scan, and orders the two by no barrier; a ``thread_barrier`` in between does.
    """
    handover = re.search(r"\bbarrier\.sync\s+1\s*;", ptx)
    return bool(handover) and "ld.shared" in ptx[: handover.start()].rpartition("bar.sync")[2]


def report(arch: int, cases: dict[str, Callable[[], object]]) -> list[tuple[str, Resources]]:
    """Compile the cases for ``arch``; (case, resources) of every kernel."""
    rows = []
    for name, launch in cases.items():
        with compiled_kernels(arch) as kernels:
            launch()
        rows += [(name, resources(kernel, arch)) for kernel in kernels]
    return rows


def main() -> int:
    """Print the table; 1 if a kernel spills or hands over early."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, action="append", choices=ARCHES)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    cases = {name: case.launch for name, case in CASES.items() if options.only in name}
    print(f"{'case':<44} {'kernel':<28} {'sm':>4} {'warps':>5} {'regs':>5} {'stack':>6} {'spills':>6} {'shared':>7}")
    faults = []
    for arch in options.arch or ARCHES:
        for name, row in report(arch, cases):
            print(
                f"{name:<44} {row.kernel:<28} {row.arch:>4} {row.warps:>5} {row.registers:>5} {row.stack:>6} "
                f"{row.spills:>6} {row.shared:>7}"
            )
            if row.spills > CASES[name].spills:
                faults.append(f"spills: {name} on sm_{arch}: {row.spills} B, {CASES[name].spills} declared")
            if row.early:
                faults.append(
                    f"hands over early: {name} on sm_{arch}: a thread_barrier ahead of its partitions is missing"
                )
    for line in faults:
        print(line, file=sys.stderr)
    return 1 if faults else 0


def _run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
