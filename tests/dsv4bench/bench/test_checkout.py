import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dsv4bench.bench.checkout import Checkout, check_out
from dsv4bench.errors import MeasurementError, UserError

ROOT = Path(__file__).parents[3]


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A kernel repository of two commits, ``old`` and ``new``, that differ in one number."""
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name in ("old", "new"):
        (folder / "src/mykernels.py").write_text(f"VERSION = {name!r}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", name)
        git(folder, "tag", name)
    monkeypatch.chdir(folder)
    return folder


def adopted(checkout: Checkout, code: str, before: str = "") -> str:
    """Run code in a process that has adopted a revision."""
    script = (
        before
        + textwrap.dedent(f"""
        from pathlib import Path
        from dsv4bench.bench.checkout import Checkout, adopt
        adopt(Checkout(Path({str(checkout.repository)!r}), Path({str(checkout.path)!r}), {checkout.sha!r}))
    """)
        + textwrap.dedent(code)
    )
    paths = [checkout.repository / "src", ROOT, ROOT / "kernels"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=checkout.repository,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_revision_lies_in_a_worktree_that_is_gone_afterwards(repository):
    with check_out("old") as checkout:
        assert checkout.sha == git(repository, "rev-parse", "old")
        assert (checkout.path / "src/mykernels.py").read_text() == "VERSION = 'old'\n"
    assert not checkout.path.exists()
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_process_that_adopts_a_revision_imports_its_code_and_works_in_its_folder(repository):
    with check_out("old") as checkout:
        printed = adopted(checkout, "import mykernels, os; print(mykernels.VERSION, os.getcwd())")
        assert printed == f"old {checkout.path}"


@pytest.mark.parametrize("place", ["src", "."])
def test_a_revision_goes_before_an_installed_copy_of_the_package(repository, tmp_path, monkeypatch, place):
    git(repository, "mv", "src/mykernels.py", f"{place}/installed.py")
    git(repository, "commit", "-q", "-m", "moved")
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "installed.py").write_text("VERSION = 'installed'\n")
    with check_out("HEAD") as checkout:
        first = f"import sys; sys.path.insert(0, {str(site)!r})\n"
        assert adopted(checkout, "import installed; print(installed.VERSION)", before=first) == "new"


def test_uncommitted_changes_of_the_working_tree_stay_out_of_a_revision(repository):
    (repository / "src/mykernels.py").write_text("VERSION = 'uncommitted'\n")
    with check_out("HEAD") as checkout:
        assert adopted(checkout, "import mykernels; print(mykernels.VERSION)") == "new"


def test_the_harness_stays_that_of_the_process_and_only_providers_are_replaced(repository):
    for package in ("bench", "providers", "providers/eager"):
        (repository / "dsv4bench" / package).mkdir(parents=True)
        (repository / "dsv4bench" / package / "__init__.py").write_text("ORIGIN = 'revision'\n")
    (repository / "dsv4bench/providers/base.py").write_text("ORIGIN = 'revision'\n")
    (repository / "dsv4bench/__init__.py").write_text("")
    (repository / "kernels/dsv4_kernels").mkdir(parents=True)
    (repository / "kernels/dsv4_kernels/__init__.py").write_text("ORIGIN = 'revision'\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "Its own providers")
    with check_out("HEAD") as checkout:
        code = """
            import dsv4_kernels, dsv4bench.bench, dsv4bench.providers.base, dsv4bench.providers.eager
            from dsv4bench import bench, providers
            parts = dsv4_kernels, providers.eager, bench, providers.base
            print([getattr(part, "ORIGIN", "harness") for part in parts])
        """
        assert adopted(checkout, code) == "['revision', 'revision', 'harness', 'harness']"


def test_a_build_runs_in_the_worktree_and_its_failure_is_named(repository):
    with check_out("old", build="echo built > built.txt") as checkout:
        assert (checkout.path / "built.txt").read_text() == "built\n"
    with (
        pytest.raises(MeasurementError, match="exit code 3: no compiler"),
        check_out("old", "echo no compiler >&2; exit 3"),
    ):
        pass
    assert git(repository, "worktree", "list").count("\n") == 0


def test_an_unknown_revision_is_named(repository):
    with pytest.raises(UserError, match="no revision 'nope'"), check_out("nope"):
        pass


def test_outside_a_repository_there_are_no_revisions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError, match="needs a git repository"), check_out("HEAD"):
        pass
