"""``list``: what it counts, names and draws."""

from typer.testing import CliRunner

from dsv4bench.cli.list import app


def lines(*arguments):
    result = CliRunner().invoke(app, ["schedules", *arguments], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_schedules_are_listed_with_their_streams():
    shown = lines()
    assert "c4a multi default, indexer 3" in shown
    assert "c4a multi3 default, aux0, aux1, aux2 12" in shown
    assert "swa multi3 default 0" in shown


def test_a_graph_puts_what_runs_together_side_by_side():
    shown = lines("--graph", "--layer", "c128a")
    assert shown[0] == "c128a multi"
    assert "default compressor" in shown
    at = shown.index("qkv_norm compressor_state_save")
    assert shown[at + 1] == "query_projection compress_norm_rope_insert"
    assert shown[at + 4] == "└ after compress_norm_rope_insert"
    assert "c128a serial" not in shown


def test_a_narrow_terminal_folds_names_and_cuts_none_off():
    shown = CliRunner().invoke(app, ["schedules", "--graph"], env={"COLUMNS": "80", "NO_COLOR": "1"}).stdout
    assert "multi3" in shown
    assert "…" not in shown


def test_a_graph_follows_the_token_threshold():
    many = lines("--graph", "--layer", "c128a", "--tokens", "2000")
    assert "input_projection compressor_projection" in lines("--graph", "--layer", "c128a")
    assert "input_projection compressor_projection" not in many[many.index("c128a multi3") :]


def test_stages_are_listed_with_the_parameters_of_a_method_and_its_results_in_their_order():
    result = CliRunner().invoke(app, ["stages"], env={"COLUMNS": "240", "NO_COLOR": "1"})
    shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
    method = (
        "inverse_rope_quant o=attention_out positions cos_sin groups=o_groups precision=o_precision o_values o_scales"
    )
    assert method in shown
    assert "query_norm_rope_insert q kv positions cos_sin window_cache window_slots eps q_rotated window_cache" in shown
