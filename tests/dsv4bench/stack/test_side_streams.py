"""Named streams are different ones although torch's pool repeats itself."""

from types import SimpleNamespace

import pytest

from dsv4bench.stack import side_streams


class Pool:
    """Hands out the same few handles in turn, as torch does."""

    def __init__(self, size):
        self.size, self.next = size, 0

    def __call__(self, device):
        handle = self.next % self.size
        self.next += 1
        return SimpleNamespace(cuda_stream=handle, device=device)


@pytest.fixture
def pool(monkeypatch):
    pool = Pool(side_streams.POOL)
    monkeypatch.setattr(side_streams, "torch", SimpleNamespace(cuda=SimpleNamespace(Stream=pool)))
    monkeypatch.setattr(side_streams, "_named", {})
    return pool


def test_a_name_keeps_its_stream(pool):
    assert side_streams.side_stream(0, "aux0") is side_streams.side_stream(0, "aux0")
    assert side_streams.side_stream(1, "aux0").device == 1


def test_names_never_share_a_stream_however_often_the_pool_has_gone_round(pool):
    names = ["capture", "aux0", "aux1", "aux2", "indexer", "compressor"]
    handles = []
    for name in names:
        handles.append(side_streams.side_stream(0, name).cuda_stream)
        pool.next += side_streams.POOL - 1  # others took streams meanwhile, so the next one is the same again
    assert len(set(handles)) == len(names)


def test_more_names_than_streams_is_an_error(pool):
    for number in range(side_streams.POOL):
        side_streams.side_stream(0, f"s{number}")
    with pytest.raises(RuntimeError, match="no stream left on device 0"):
        side_streams.side_stream(0, "one more")
