import errno
import os

import pytest

from dsv4bench.results.atomic import naming, replacing, write_text


def test_a_file_is_replaced_whole_and_its_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_text(path, "one")
    write_text(path, "two\n")
    assert path.read_text() == "two\n"
    assert os.listdir(path.parent) == ["b.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit])
def test_whatever_stops_the_writing_leaves_the_earlier_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "b.png"
    path.write_text("earlier")

    def stopped():
        with replacing(path) as beside:
            assert beside.suffix == ".png"
            beside.write_text("hal")
            raise error

    with pytest.raises(error):
        stopped()
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["b.png"]


def test_an_error_of_the_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left on device") as caught, naming(tmp_path / "b"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(tmp_path / "b")
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(full, "x" * 100_000)
    assert caught.value.filename == str(full)


def test_a_link_and_a_pipe_are_written_to_and_stay_what_they_are(tmp_path):
    (tmp_path / "file").write_text("earlier")
    link = tmp_path / "link"
    link.symlink_to("file")
    write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
