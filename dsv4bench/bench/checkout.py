"""A revision of the user's repository in a worktree of its own, and a process that takes its kernels from there.

The harness stays that of the process that started: only what the repository provides (kernels, providers, files that a
scenario names) comes from the revision, so that two revisions are measured by the same rules.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsv4bench.errors import MeasurementError, UserError

PROVIDERS = "dsv4bench.providers"
"""The one package of the harness that a revision of this very repository replaces."""
HARNESS = (f"{PROVIDERS}.base", f"{PROVIDERS}.registry")
"""What of it belongs to the harness all the same: how providers are asked and found."""
KERNELS = "dsv4_kernels"
"""The kernel library, which is replaced as a whole."""


@dataclass(frozen=True)
class Checkout:
    """A revision on disk.

    Attributes:
        repository: top of the repository it belongs to.
        path: top of its worktree.
        sha: commit.
    """

    repository: Path
    path: Path
    sha: str

    def inside(self, path: Path) -> Path | None:
        """Where a path of the repository lies in this revision; None for paths elsewhere or that it doesn't have."""
        if not path.is_relative_to(self.repository):
            return None
        moved = self.path / path.relative_to(self.repository)
        return moved if moved.exists() else None


@contextmanager
def check_out(revision: str, build: str = "") -> Iterator[Checkout]:
    """Put a revision of the repository around the working directory into a temporary worktree.

    Args:
        revision: whatever ``git rev-parse`` understands.
        build: shell command to run in it first, for kernels that are compiled.

    Raises:
        UserError: no repository here, or no such revision.
        MeasurementError: the build failed.
    """
    repository = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel", what="git:REV needs a git repository"))
    sha = _git(
        repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", what=f"no revision {revision!r}"
    )
    with tempfile.TemporaryDirectory(prefix="dsv4bench-") as folder:
        path = Path(folder).resolve() / sha[:12]
        _git(repository, "worktree", "add", "--detach", str(path), sha, what=f"can't check out {revision}")
        try:
            if build:
                _build(build, path)
            yield Checkout(repository.resolve(), path, sha)
        finally:
            _git(repository, "worktree", "remove", "--force", str(path), what=f"can't remove {path}")


def adopt(checkout: Checkout) -> None:
    """Make this process take the repository's code from a revision: working directory, import path, providers.

    The revision's own packages, at its top or in ``src``, go before everything that is installed: a copy of them in
    site-packages would be the same on both sides of a comparison.
    """
    for name in [name for name in sys.modules if name.split(".")[0] == KERNELS or name.startswith(PROVIDERS)]:
        del sys.modules[name]
    moved = (checkout.inside(Path(entry or ".").resolve()) for entry in sys.path)
    sys.path[:] = [str(new) if new else old for old, new in zip(sys.path, moved, strict=True)]
    here = checkout.inside(Path.cwd().resolve())
    os.chdir(here or checkout.path)
    sys.path[:0] = [str(folder) for folder in (checkout.path, checkout.path / "src") if folder.is_dir()]
    kernels = checkout.path / "kernels"
    if (kernels / KERNELS).is_dir() and str(kernels) not in sys.path:
        sys.path.insert(0, str(kernels))
    revised = checkout.path / "dsv4bench" / "providers"
    if revised.is_dir():
        for part in HARNESS:
            importlib.import_module(part)
        sys.modules[PROVIDERS].__path__ = [str(revised)]


def _build(command: str, folder: Path) -> None:
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MeasurementError(
            f"building {folder.name} with {command!r} ended with exit code {done.returncode}: {last}"
        )


def _git(folder: Path, *words: str, what: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"git can't be run: {error.strerror}") from error
    if done.returncode != 0:
        detail = (done.stderr.strip().splitlines() or [""])[-1]
        raise UserError(f"{what}{': ' + detail if detail else ''}")
    return done.stdout.strip()
