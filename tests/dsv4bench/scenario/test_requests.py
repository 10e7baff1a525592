"""Batches as text: vLLM's grammar, decodes first."""

import pytest

from dsv4bench.errors import UserError
from dsv4bench.scenario.requests import Request, parse_requests


def test_the_examples_of_vllms_grammar_mean_what_they_mean_there():
    assert parse_requests("q2k") == (Request(2048, 2048),)
    assert parse_requests("q1s1k") == (Request(1, 1024),)
    assert parse_requests("8q1s1k") == (Request(1, 1024),) * 8
    assert parse_requests("q4s1k") == (Request(4, 1024),)
    assert parse_requests("16q4s1k") == (Request(4, 1024),) * 16


def test_a_mixed_batch_puts_decodes_first():
    assert parse_requests("2q2ks2k_64q1s128k") == (Request(1, 131072),) * 64 + (Request(2048, 2048),) * 2
    assert parse_requests("64q1s128k_2q2ks2k") == parse_requests("2q2ks2k_64q1s128k")


def test_binary_suffixes_of_scenarios_are_accepted_too():
    assert parse_requests("q1s1M") == (Request(1, 1048576),)
    assert parse_requests("q1s8K") == parse_requests("q1s8k")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^'' is not"),
        ("4x1s1k", r"^'4x1s1k' is not \[count\]"),
        ("4x1s1k_2q1", "^'4x1s1k' in '4x1s1k_2q1' is not"),
        ("64q1z", r"is not \[count\]q<tokens>\[s<length>\]"),
        ("q1s1k_", "'' in 'q1s1k_' is not"),
        ("q2ks1k", "1 to s query tokens, this one 2048 of 1024"),
        ("q0s1k", "1 to s query tokens, this one 0 of 1024"),
        ("0q1s1k", "has 0 requests"),
        ("99999999q1s1k", "has 99,999,999 requests"),
        ("q1s-1", "is not"),
        ("q1s99999999999999M", "q1s99999999999999M': a length is absurdly large"),
        ("q" + "9" * 5000, "is not"),
    ],
)
def test_anything_else_is_a_users_error(text, message):
    with pytest.raises(UserError, match=message):
        parse_requests(text)
