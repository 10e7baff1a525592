import json
from pathlib import Path
from typing import Any

import pytest

from dsv4bench.errors import UserError
from dsv4bench.memory.trace import MIXES, TraceRequest, built_in, load_requests, read_trace


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def segments(request: TraceRequest) -> list[int]:
    return [number for part in request.content for number in part]


def shared(first: TraceRequest, second: TraceRequest) -> int:
    pairs = list(zip(segments(first), segments(second), strict=False))
    return next((k for k, (a, b) in enumerate(pairs) if a != b), len(pairs))


def test_requests_are_sorted_by_arrival_and_share_nothing_unless_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"arrival": 5, "prompt": 600, "output": 100}, "",
                 {"arrival": 1.5, "prompt": 512, "output": 0})  # fmt: skip
    first, second = read_trace(path)
    assert (first.arrival, first.prompt, first.output, len(segments(first))) == (1.5, 512, 0, 2)
    assert len(segments(second)) == 2
    assert shared(first, second) == 0


def test_requests_of_a_session_continue_one_another(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *(
        {"arrival": k, "prompt": 1000 * (k + 1), "output": 500, "session": "a"} for k in range(2)
    ))  # fmt: skip
    first, second = read_trace(path)
    assert shared(first, second) == len(segments(first)) == 5


def test_requests_that_name_a_system_prompt_share_its_whole_segments(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *(
        {"arrival": k, "prompt": 2000, "output": 5, "system": "s", "system_tokens": 700} for k in range(2)
    ))  # fmt: skip
    first, second = read_trace(path)
    assert shared(first, second) == 2


def test_mooncake_traces_are_read_with_their_hashes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"timestamp": 2000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 3]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 9]},
    )
    first, second = read_trace(path)
    assert (first.arrival, first.prompt) == (2.0, 1500)
    assert shared(first, second) == 4
    assert (len(segments(first)), len(segments(second))) == (5, 5)
    assert not set(segments(first)[4:]) & set(segments(second)[4:])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"t\.jsonl:2: not valid JSON"),
        ("[1]", r"t\.jsonl:2: a request is a JSON object with arrival, prompt and output"),
        ({"arrival": 0, "output": 1}, r"t\.jsonl:2: prompt must be a number of at least 1, got None"),
        ({"arrival": -1, "prompt": 1, "output": 1}, "arrival must be a number of at least 0, got -1"),
        ({"arrival": 0, "prompt": 0, "output": 1}, "prompt must be a number of at least 1, got 0"),
        ({"arrival": 0, "prompt": 9, "output": "x"}, "output must be a number of at least 0, got 'x'"),
        ({"arrival": 0, "prompt": 9.5, "output": 1}, r"prompt must be a whole number of at most 1,073,741,824 tokens"),
        ({"arrival": 0, "prompt": 10**12, "output": 1}, r"prompt must be a whole number of at most 1,073,741,824"),
        ('{"arrival": 0, "prompt": 9, "output": 1e400}', "output must be a number of at least 0, got inf"),
        ('{"arrival": NaN, "prompt": 9, "output": 1}', "arrival must be a number of at least 0, got nan"),
        (
            {"timestamp": "x", "input_length": 9, "output_length": 1},
            "timestamp must be a number of at least 0, got 'x'",
        ),
        (
            {"arrival": 0, "prompt": 9, "output": 1, "sytem": "s", "system_tokens": 4},
            r"t\.jsonl:2: unknown key 'sytem': did you mean system\? known are arrival, prompt, output, session, ",
        ),
        (
            {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_id": [1]},
            r"unknown key 'hash_id': did you mean hash_ids\? known are timestamp, input_length, output_length",
        ),
        ({"arrival": 0, "prompt": 9, "output": 1, "session": ["a"]}, "session must be a text or a whole number"),
        ({"arrival": 0, "prompt": 9, "output": 1, "system": 3.5, "system_tokens": 1}, "system must be a text or"),
        (
            {"arrival": 0, "prompt": 9, "output": 1, "system": "s", "system_tokens": "x"},
            "system_tokens must be a number",
        ),
        ({"arrival": 0, "prompt": 9, "output": 1, "system": "s"}, "system and system_tokens go together"),
        ({"arrival": 0, "prompt": 9, "output": 1, "system_tokens": 4}, "system and system_tokens go together"),
        ({"arrival": 0, "prompt": 9, "output": 1, "hash_ids": 5}, "hash_ids must be a list of numbers, got 5"),
        ({"arrival": 0, "prompt": 9, "output": 1, "hash_ids": [[1]]}, "hash_ids must be a list of numbers"),
    ],
)
def test_a_line_that_is_no_request_is_an_error_with_file_and_line(tmp_path: Path, line: Any, message: str) -> None:
    path = write(tmp_path / "t.jsonl", {"arrival": 0, "prompt": 1, "output": 1}, line)
    with pytest.raises(UserError, match=message):
        read_trace(path)


def test_an_empty_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no request"):
        read_trace(write(tmp_path / "t.jsonl", ""))


def test_neither_a_file_nor_a_mix_lists_the_mixes() -> None:
    with pytest.raises(UserError, match="is no file and no mix; the mixes are chat, agents, documents"):
        load_requests("chats", 10, None)


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_is_reproducible_and_mostly_continues_its_sessions(name: str) -> None:
    requests = built_in(name, 300)
    assert requests == built_in(name, 300)
    assert len(requests) == 300
    assert all(len(segments(r)) == (r.prompt + r.output) // 256 for r in requests)
    assert requests == sorted(requests, key=lambda r: r.arrival)
    seen: set[int] = set()
    repeated = 0
    for request in requests:
        repeated += any(number in seen for number in segments(request))
        seen.update(segments(request))
    assert repeated > 60
