"""Providers that are eager but for one thing that goes wrong."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dsv4bench.providers.base import Support
from dsv4bench.providers.eager import EagerProvider


class Wrong(EagerProvider):
    name = "wrong"

    def qkv_norm(self, **arguments):
        q_latent, kv = super().qkv_norm(**arguments)
        return q_latent * 1.1, kv


class Clears(EagerProvider):
    """Selects rightly, and leaves nothing of the logits by which that could be told."""

    name = "clears"

    def topk(self, *, logits, **arguments):
        chosen = super().topk(logits=logits, **arguments)
        logits.zero_()
        return chosen


class Raises(EagerProvider):
    name = "raises"

    def sparse_attention(self, **arguments):
        raise ValueError("no such head size\nsecond line")


class RaisesLater(EagerProvider):
    """Works until the second round."""

    name = "raises-later"
    calls = 0

    def output_projection(self, **arguments):
        type(self).calls += 1
        if type(self).calls > 5:
            raise ValueError("tired")
        return super().output_projection(**arguments)


class WaitsLater(EagerProvider):
    """Works until the second round, and goes on only if it isn't told to wait."""

    name = "waits-later"
    calls = 0

    def output_projection(self, **arguments):
        type(self).calls += 1
        while type(self).calls > 5 and os.environ.get("DSV4BENCH_WAIT"):
            time.sleep(60)
        return super().output_projection(**arguments)


class Hungry(EagerProvider):
    name = "hungry"

    def sparse_attention(self, **arguments):
        import torch

        return torch.empty(2**60, dtype=torch.uint8)


class Picky(EagerProvider):
    name = "picky"

    def supports(self, need):
        return Support.no(f"no {need.main} cache")


class PlainYes(EagerProvider):
    name = "plain-yes"

    def supports(self, need):
        return True


class Killed(EagerProvider):
    name = "killed"

    def sparse_attention(self, **arguments):
        os.kill(os.getpid(), signal.SIGKILL)


class Segfault(EagerProvider):
    name = "segfault"

    def sparse_attention(self, **arguments):
        ctypes.string_at(0)


class Hangs(EagerProvider):
    """Starts a child, notes its process id, and never returns."""

    name = "hangs"

    def sparse_attention(self, **arguments):
        print("hanging now")
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note = Path(os.environ["HANGING_CHILD"])
        note.with_suffix(".new").write_text(str(child.pid))
        note.with_suffix(".new").replace(note)
        while True:
            time.sleep(60)


class Talking(EagerProvider):
    """Supports nothing, and says what the environment tells it to."""

    name = "talking"

    def supports(self, need):
        return Support(False, os.environ["DSV4BENCH_WORDS"])
