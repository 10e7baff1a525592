"""Output files that are whole or not there: whoever is interrupted, or runs out of disk, leaves the earlier file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place when the block ends well and vanishes otherwise.

    Folders that are missing are made. What isn't a plain file (a pipe, ``/dev/stdout``, a symbolic link) can't be
    replaced, and is written to as it is.

    Args:
        path: of the output; the file that is given has the same suffix.

    Raises:
        OSError: it can't be written; the error names ``path``.
    """
    with naming(path):
        yield from _replacing(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in the errors of writing to it: the system leaves that out when the disk is full.

    Raises:
        OSError: what went wrong, with ``path`` as its file name.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replacing(path: Path) -> Iterator[Path]:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield beside
        _to_disk(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, or leave the one that is there.

    Raises:
        OSError: it can't be written.
    """
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
