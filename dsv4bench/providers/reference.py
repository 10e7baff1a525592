"""The provider that defines what is right: the torch reference, stage by stage. Slow, and never a speed baseline."""

from dsv4_kernels import reference

from dsv4bench.model.stage import STAGE_NAMES
from dsv4bench.providers.base import SUPPORTED, Need, Support


class ReferenceProvider:
    """Every stage of every layer kind in plain torch, on any device and in every precision."""

    name = "reference"
    capturable = False
    """It synchronises with the host, so a CUDA graph can't hold it."""

    def supports(self, need: Need) -> Support:
        """Everything is supported."""
        return SUPPORTED


for _name in STAGE_NAMES:
    setattr(ReferenceProvider, _name, staticmethod(getattr(reference, _name)))
