"""What every launcher asks of the device it is about to launch on.

Kernels here take ``PDL`` as a constexpr: with programmatic dependent launch a kernel is scheduled while its predecessor
drains and waits in ``begin`` before it touches memory. Each kernel waits, in every program, before its first access, so
the order of the stream is kept; what overlaps is only the launch itself, which is most of the time of a small step.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_PDL_ARCH = 90
_PDL_PROGRAMS = 640
"""H200, 2026-11-29: dependent launch saves 0.2 to 0.3 us a launch but costs 0.5 ns a program (c4idx state save,
T = 8,192: 10.7 us with it, 6.5 without)."""


def launch_options(programs: int = 1) -> dict[str, object]:
    """Launch keywords common to all kernels: ``PDL`` and, where the device has it and it pays, the launch attribute.

    Args:
        programs: size of the grid.
    """
    if triton.knobs.runtime.interpret or programs > _PDL_PROGRAMS:
        return {"PDL": False}
    target = triton.runtime.driver.active.get_current_target()
    supported = target.backend == "cuda" and target.arch >= _PDL_ARCH
    return {"PDL": True, "launch_pdl": True} if supported else {"PDL": False}


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the preceding kernel's memory, then let the following kernel be scheduled. Call before any access."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
