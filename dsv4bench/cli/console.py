"""Where tables go: a module of its own, so that light commands print without what the results of runs need."""

import os
import sys

from rich.console import Console

WIDE = 240
"""Columns of a table that goes to a file or a pipe, unless ``COLUMNS`` says otherwise."""


def output_console() -> Console:
    """Standard output: as wide as the terminal or ``COLUMNS``, or as wide as it takes where there is neither."""
    return Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDE)
