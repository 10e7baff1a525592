"""Where in a provider's own file something went wrong: the line that its author can act on."""

import traceback
from pathlib import Path

FILE_MODULE = "dsv4bench_provider_"
"""What the module names of providers that were loaded from a file begin with."""


def place_of(error: BaseException) -> str:
    """The last line of a provider's file that an exception came through, as `` (mine.py:41)`` to put behind a message.

    Empty if it came through none; a provider's file is one that was named as ``path/to/file.py:Class``.
    """
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(FILE_MODULE)
    ]
    return f" ({Path(frames[-1][0]).name}:{frames[-1][1]})" if frames else ""
