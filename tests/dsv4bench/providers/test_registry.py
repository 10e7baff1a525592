"""Finding and making providers: what goes wrong is one sentence."""

import pytest

from dsv4bench.errors import UserError
from dsv4bench.providers.base import SUPPORTED, implemented_stages
from dsv4bench.providers.registry import BUILT_IN, list_providers, load_provider, misspelt_stages, require_known

SOURCE = """
from dsv4bench.providers.base import SUPPORTED

class Mine:
    name = "mine"
    def supports(self, need):
        return SUPPORTED
    def topk(self, *, logits, candidate_lens, k):
        return logits

class Empty:
    name = "empty"
    def supports(self, need):
        return SUPPORTED

class Close(Empty):
    def top_k(self):
        return None

class Beside(Mine):
    def topk_(self):
        return None
    def index_maps(self):
        return None
    def _sparse_attention(self):
        return None

class Nameless:
    def topk(self):
        return None

class Raises(Mine):
    def __init__(self):
        raise ValueError("no such card")

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_class_of_a_file_is_a_provider(file):
    provider = load_provider(f"{file}:Mine")
    assert provider.name == "mine"
    assert implemented_stages(provider) == ("topk",)
    assert provider.supports(None) == SUPPORTED


def test_methods_nearly_named_like_a_stage_that_is_lacking_are_found(file):
    assert misspelt_stages(load_provider(f"{file}:Beside")) == [("index_maps", "index_map")]
    assert [misspelt_stages(load_provider(name)) for name in ("reference", "eager", "vllm")] == [[], [], []]


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("Empty", "implements no stage; docs/stages.md lists them$"),
        ("Close", r"implements no stage; docs/stages.md lists them; top_k is none, did you mean topk\?$"),
        ("Nameless", "lacks a `name`"),
        ("Raises", "can't be made: ValueError: no such card"),
        ("number", "is not a class or a function"),
        ("Other", "has no 'Other'"),
    ],
)
def test_what_is_no_provider_is_refused_with_its_reason(file, attribute, message):
    with pytest.raises(UserError, match=message):
        load_provider(f"{file}:{attribute}")


def test_a_file_that_fails_or_is_missing_is_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n")
    with pytest.raises(UserError, match="broken.py failed to import: ModuleNotFoundError"):
        load_provider(f"{broken}:X")
    with pytest.raises(UserError, match="no such provider file"):
        load_provider(f"{tmp_path / 'none.py'}:X")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown provider 'nope'.*eager"):
        load_provider("nope")


def test_a_misspelt_name_gets_the_one_that_was_meant():
    with pytest.raises(UserError, match=r"^unknown provider 'tritno:variant': did you mean triton\? known are "):
        load_provider("tritno:variant")


def test_every_built_in_provider_is_listed_with_stages_or_a_reason():
    infos = {info.name: info for info in list_providers()}
    assert set(BUILT_IN) <= set(infos)
    assert all(info.stages or info.unavailable for info in infos.values())
    assert len(infos["reference"].stages) == len(infos["eager"].stages) == 26


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ("vllm:tritn", "vllm, vllm:triton, vllm:cute"),
        ("triton:fast", "triton"),
        ("eager:x", "eager"),
        ("eager:", "eager"),
    ],
)
def test_a_variant_that_does_not_exist_is_refused_before_anything_is_imported(spec, known):
    with pytest.raises(UserError) as caught:
        require_known(spec)
    name, _, variant = spec.partition(":")
    assert str(caught.value) == f"provider {name} has no variant {variant!r}; known: {known}"


def test_a_class_that_a_file_does_not_mention_is_refused_before_anything_is_imported(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit\nclass MyTopk: ...\n")
    require_known(f"{tmp_path}/mine.py:MyTopk")
    with pytest.raises(UserError, match=r"/mine.py has no 'MyTpok'; it has MyTopk$"):
        require_known(f"{tmp_path}/mine.py:MyTpok")
    with pytest.raises(UserError, match="failed to import: SystemExit"):
        load_provider(f"{tmp_path}/mine.py:MyTopk")


def test_a_file_without_a_class_is_told_how_to_name_one():
    with pytest.raises(UserError, match=r"^provider mine/topk.py: say which class of the file, as mine/topk.py:Class$"):
        require_known("mine/topk.py")


def test_variants_that_exist_are_known():
    for spec in ("vllm", "vllm:triton", "vllm:cute", "triton"):
        require_known(spec)
