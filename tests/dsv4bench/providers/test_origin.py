import pytest

from dsv4bench.bench.failure import status_of
from dsv4bench.providers.origin import place_of
from dsv4bench.providers.registry import load_provider

SOURCE = """from dsv4bench.providers.base import SUPPORTED
from json import loads

class Mine:
    name = "mine"
    def supports(self, need):
        return SUPPORTED
    def topk(self):
        return self._deeper()
    def _deeper(self):
        return loads("{")
"""


def test_an_exception_is_placed_at_the_last_line_of_the_file_that_it_came_through(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    with pytest.raises(ValueError, match="property name") as caught:
        load_provider(f"{tmp_path}/mine.py:Mine").topk()
    assert place_of(caught.value) == " (mine.py:11)"
    assert status_of(caught.value)[1].endswith(" (mine.py:11)")


def test_an_exception_of_nobody_s_file_has_no_place():
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("x")
    assert place_of(caught.value) == ""
