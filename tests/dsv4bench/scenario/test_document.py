import pytest

from dsv4bench.errors import UserError
from dsv4bench.scenario.document import MOST_CHARACTERS, parse_document, parse_value


def test_every_key_and_item_has_its_line():
    data, lines = parse_document("a: 1\nb:\n  - x\n  - c: 2\n", "f.yaml")
    assert data == {"a": 1, "b": ["x", {"c": 2}]}
    assert lines == {
        ("a",): "f.yaml:1", ("b",): "f.yaml:2", ("b", 0): "f.yaml:3", ("b", 1): "f.yaml:4", ("b", 1, "c"): "f.yaml:4",
    }  # fmt: skip


def test_aliases_and_merged_mappings_are_followed():
    data, lines = parse_document("a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2\n", "f.yaml")
    assert data["c"] == {"b": 1}
    assert data["d"] == {"b": 1, "e": 2}
    assert lines["c", "b"] == "f.yaml:1"


def doubling(times):
    """A text whose aliases unfold to 10 to the power of ``times`` values."""
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, times)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml:1: a scenario is a mapping"),
        ("a: 1\n\x07", "f.yaml:2: not valid YAML: the character '\\x07' is not allowed"),
        ("a: b\n\tc: d\n", "f.yaml:2: not valid YAML: found character '\\t'"),
        ("a: 1\na: 2\n", "f.yaml:2: key 'a' stands here a second time"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: key 'b' stands here a second time"),
        ("a: 1\n2: 3\n", "f.yaml:2: a key has to be text; this one is '2', which YAML does not read as text"),
        ("a: 1\non: 3\n", "f.yaml:2: a key has to be text; this one is 'on'"),
        ("? [a]\n: 3\n", "f.yaml:1: a key has to be text; this one is a list"),
        ("a: 1\nb: &b\n  c: *b\n", "f.yaml:2: what stands here refers to itself by an alias"),
        ("a: &a [*a]\n", "f.yaml:1: what stands here refers to itself by an alias"),
        ("a: *b\n", "f.yaml:1: not valid YAML: found undefined alias 'b'"),
        ("a: 1\nb: 2026-99-99\n", "f.yaml:2: not valid YAML: month must be in 1..12"),
        ("a: 1\nb: !!int x\n", "f.yaml:2: not valid YAML: invalid literal for int()"),
        ("a: !!python/object/apply:os.getcwd []\n", "f.yaml:1: not valid YAML: could not determine a constructor"),
        ("a:\n  <<: 3\n", "f.yaml:2: not valid YAML: expected a mapping"),
        ("a: " + "[" * 2000 + "]" * 2000, "f.yaml: nested too deeply"),
        (doubling(8), "f.yaml: over 50,000 values once its aliases are followed"),
        ("#" * (MOST_CHARACTERS + 1), "f.yaml: longer than any scenario"),
    ],
)
def test_what_can_not_be_read_is_one_sentence_with_its_line(text, message):
    with pytest.raises(UserError) as caught:
        parse_document(text, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[", "2026-99-99", "!!python/name:os.getcwd", "[" * 2000])
def test_a_value_that_is_no_yaml_is_a_value_error_of_one_line(text):
    with pytest.raises(ValueError, match=".") as caught:
        parse_value(text)
    assert "\n" not in str(caught.value)
