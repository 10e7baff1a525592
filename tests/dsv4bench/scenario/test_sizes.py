import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UserError
from dsv4bench.scenario.sizes import format_bytes, format_tokens, parse_bytes, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("0", 0), ("4096", 4096), (4096, 4096), ("1k", 1000), ("1K", 1024), ("1m", 1_000_000), ("1M", 1_048_576),
        ("25.6k", 25_600), ("1_048_576", 1_048_576), ("1,048,576", 1_048_576), (" 8 K ", 8192), ("2G", 2**31),
    ],
)  # fmt: skip
def test_token_counts_are_read_as_vllm_reads_them(text: str | int, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), (584, 584), ("584B", 584), ("80GB", 80 * 10**9), ("80GiB", 80 * 2**30), ("1.5 KiB", 1536),
        ("47.43GiB", int(47.43 * 2**30)), ("28_235_618_304B", 28_235_618_304), (".5MiB", 2**19),
    ],
)  # fmt: skip
def test_byte_sizes_are_read_in_both_kinds_of_unit(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-4", r"--ctx: '-4' is not a number of tokens such as 4096, 8K or 1M"),
        ("", "not a number of tokens"), ("K", "not a number of tokens"), ("1e6", "not a number of tokens|unknown suff"),
        ("8Q", "unknown suffix 'Q' in '8Q'"), ("1.5", "not a whole number of tokens"),
        ("1.5K", "decimals go with k and m only"), ("0.0001k", "not a whole number"), ("9999999T", "absurdly large"),
        ("9" * 5000, "not a number of tokens"), (True, "not a number of tokens"), ("1..5k", "not a number of tokens"),
    ],
)  # fmt: skip
def test_a_wrong_token_count_is_an_error_that_names_the_flag(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_tokens(text, "--ctx")
    assert str(error.value).startswith("--ctx: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-1GiB", "is not a size such as"), ("80G", "unknown unit 'G' in '80G'; write B, kB"), ("nan", "is not a size"),
        ("80 gib", "unknown unit"), (" 110 ", r"--available: ' 110 ' has no unit; write 110GiB, or 110B for bytes"),
        ("99999999999TiB", "absurdly large"),
    ],
)  # fmt: skip
def test_a_wrong_byte_size_is_an_error_that_names_the_flag(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_bytes(text, "--available")


@given(st.integers(0, 2**50))
def test_formatted_token_counts_parse_back_to_the_same_number(count: int) -> None:
    assert parse_tokens(format_tokens(count)) == count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (584, "584 B"),
        (8_519_680, "8.13 MiB"),
        (10_334_371_840, "9.62 GiB"),
        (2**40, "1.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_are_printed_in_the_largest_unit_that_leaves_one(count: int, text: str) -> None:
    assert format_bytes(count) == text
