import pytest

from dsv4bench.cli.schema import schema_text
from dsv4bench.errors import UserError
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import find_scenario, load_scenario, scenario_of, shipped_scenarios

MINIMAL = "name: mini\nmodel: v4-flash\nworkload:\n  context: 8K\n"


@pytest.fixture
def write(tmp_path):
    def _write(text):
        path = tmp_path / "mini.yaml"
        path.write_text(text)
        return str(path)

    return _write


def test_a_scalar_is_an_axis_of_one(write):
    scenario = load_scenario(write(MINIMAL))
    assert scenario.model == ["v4-flash"]
    assert scenario.workload.context == [8192]
    assert scenario.workload.batch == [1]


def test_sizes_read_binary_and_decimal_suffixes(write):
    scenario = load_scenario(write(MINIMAL.replace("8K", "[8k, 8K, 1M, 100]")))
    assert scenario.workload.context == [8000, 8192, 1048576, 100]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "  bath: 3\n", r"mini.yaml:5: workload.bath: unknown key; did you mean 'batch'\?"),
        (MINIMAL + "colour: red\n", r"mini.yaml:5: colour: unknown key; known: name, description"),
        (MINIMAL.replace("8K", "8Q"), r"mini.yaml:4: workload.context.0: tokens: unknown suffix 'Q'"),
        (MINIMAL + "  batch: [1, 0]\n", r"mini.yaml:5: workload.batch.1: .*greater than or equal to 1, got 0"),
        (MINIMAL + "layers: [c4b]\n", r"mini.yaml:5: layers.0: .*'swa', 'c4a', 'c128a' or 'dsa', got 'c4b'"),
        (MINIMAL + "name: twice\n", r"mini.yaml:5: key 'name' stands here a second time"),
        (MINIMAL + "cache: {main: fp7}\n", r"mini.yaml:5: cache.main.0: .*'fp8', 'bf16' or 'fp32', got 'fp7'"),
        (MINIMAL + "providers: [{topk: eager}]\n", "mini.yaml:5: providers: .*needs the key 'default'"),
        (MINIMAL + "providers: [{default: eager, top: eager}]\n", "mini.yaml:5: providers: unknown stage 'top'"),
        (MINIMAL + "providers: 3\n", "mini.yaml:5: providers.0: should be text, got 3$"),
        (MINIMAL + "providers: {default: eager, topk: 3}\n", "mini.yaml:5: providers.0.topk: should be text, got 3$"),
        (MINIMAL + "kind: stage\n", "mini.yaml:5: 'stages' belongs to kind: stage, which needs it"),
        (MINIMAL + "copies: 5\n", "mini.yaml:5: 'copies' belongs to kind: model, whose layers take them in turn"),
        (
            MINIMAL + "kind: stage\nstages: [topk]\nbaseline:\n  model: v3.2\n",
            "mini.yaml:8: 'baseline.model' does not go with kind: stage",
        ),
        (MINIMAL + "kind: memory\nbaseline: {model: v3.2}\n", "mini.yaml:6: 'baseline' does not go with kind: memory"),
        (MINIMAL + "kind: stage\nstages: [topkk]\n", "mini.yaml:6: stages: unknown stage 'topkk'; did you mean 'topk'"),
        (
            MINIMAL + "timing:\n  timer: graph\n",
            "mini.yaml:6: timing.timer graph times CUDA graphs; set",
        ),
        (MINIMAL + "timing:\n", "mini.yaml:5: timing: should be a mapping, got nothing"),
        (MINIMAL + "timing: {rounds: true}\n", "mini.yaml:5: timing.rounds: should be a whole number, got True"),
        (MINIMAL + "timing: {rounds: '3'}\n", "mini.yaml:5: timing.rounds: should be a whole number, got '3'"),
        (MINIMAL + "timing: {rounds: 3.5}\n", "mini.yaml:5: timing.rounds: should be a whole number, got 3.5"),
        (MINIMAL + "timing: {timeout: 1.0e+10}\n", "mini.yaml:5: timing.timeout: .*less than or equal to 1000000"),
        (MINIMAL + "timing: {timeout: .inf}\n", "mini.yaml:5: timing.timeout: .*finite number, got inf"),
        (
            MINIMAL + "timing: {seed: 9223372036854775808}\n",
            "mini.yaml:5: timing.seed: .*less than 922337203685477",
        ),
        (MINIMAL + "schedule: {graph: maybe}\n", "mini.yaml:5: schedule.graph.0: should be true or false, got 'maybe'"),
        (MINIMAL + "  phase: decod\n", "mini.yaml:5: workload.phase.0: .*'decode' or 'prefill', got 'decod'"),
        (MINIMAL + "  boundary: []\n", r"mini.yaml:5: workload.boundary: needs at least one value, got \[\]"),
        (MINIMAL + "  batch: 100000000\n", "mini.yaml:5: workload.batch.0: .*less than or equal to 65536"),
        ("- 1\n", "mini.yaml:1: a scenario is a mapping"),
        ("name: [\n", "mini.yaml:2: not valid YAML"),
        ("", "mini.yaml:1: a scenario is a mapping"),
        ("model: v4-flash\nworkload: {context: 1}\n", "name: is missing"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(write, text, message):
    with pytest.raises(UserError, match=message) as caught:
        load_scenario(write(text))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_overrides_win_and_are_named_in_errors(write):
    path = write(MINIMAL)
    assert load_scenario(path, ["workload.batch=[1, 8]", "timing.rounds=3"]).workload.batch == [1, 8]
    with pytest.raises(UserError, match=r"--set workload.batch=x: workload.batch.0"):
        load_scenario(path, ["workload.batch=x"])
    with pytest.raises(UserError, match="expected key.path=value"):
        load_scenario(path, ["workload.batch"])
    with pytest.raises(UserError, match="name is not a section"):
        load_scenario(path, ["name.x=1"])
    with pytest.raises(UserError, match="^--set timming.rounds=1: timming: unknown key; did you mean 'timing'"):
        load_scenario(path, ["timming.rounds=1"])
    with pytest.raises(UserError, match="^--set workload.batch=.1: the value is not valid YAML: expected"):
        load_scenario(path, ["workload.batch=[1"])


def test_plain_data_is_refused_with_the_name_of_its_source():
    with pytest.raises(UserError, match="^manifest.json: scenario: workload: is missing$"):
        scenario_of({"name": "x", "model": ["v4-flash"]}, "manifest.json: scenario")


def test_a_file_that_is_not_utf8_says_which_byte(tmp_path):
    path = tmp_path / "mini.yaml"
    path.write_bytes(MINIMAL.encode() + "description: é\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"mini.yaml: not UTF-8: byte 0xe9 at \d+$"):
        load_scenario(str(path))
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_scenario(str(path)).name == "mini"


def test_a_shipped_scenario_is_found_by_name_and_an_unknown_one_gets_a_hint():
    assert find_scenario("quickstart") == shipped_scenarios()["quickstart"]
    with pytest.raises(UserError, match="did you mean 'quickstart'"):
        find_scenario("quikstart")


def test_every_shipped_scenario_is_valid_and_opens_with_its_schema_line():
    for path in shipped_scenarios().values():
        assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n"), path
        assert expand(load_scenario(str(path)))


def test_the_committed_schema_is_the_codes():
    committed = shipped_scenarios()["quickstart"].with_name("schema.json")
    assert committed.read_text() == schema_text(), "run `make schema`"


def test_the_schema_accepts_the_shipped_scenarios():
    import json

    import jsonschema
    import yaml

    validator = jsonschema.Draft202012Validator(json.loads(schema_text()))
    for path in shipped_scenarios().values():
        validator.validate(yaml.safe_load(path.read_text()))
    assert not validator.is_valid({"name": "x", "model": "v4-flash", "workload": {"context": 1, "bath": 2}})


def test_a_scenario_is_read_again_from_what_a_run_stores_of_it(write):
    scenario = load_scenario(write(MINIMAL))
    assert scenario_of(scenario.model_dump(mode="json", exclude_none=True), "manifest") == scenario
