"""The built wheel: two import packages and the scenarios, usable from any folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_it_holds_two_packages_and_no_top_level_kernels(unpacked):
    assert sorted(p.name for p in unpacked.iterdir() if p.suffix != ".dist-info") == ["dsv4_kernels", "dsv4bench"]


def test_shipped_scenarios_run_by_name_from_any_folder(unpacked, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    code = "import dsv4bench; print(dsv4bench.__file__)"
    where = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(unpacked))
    for command in (["validate", "quickstart"], ["run", "quickstart", "--dry-run"], ["list", "scenarios"]):
        done = subprocess.run(
            [sys.executable, "-m", "dsv4bench", *command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert (unpacked / "dsv4bench/scenario/shipped/schema.json").is_file()
