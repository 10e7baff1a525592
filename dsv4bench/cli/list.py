"""``dsv4bench list``: what there is to choose from."""

import typer
from rich.console import Console
from rich.table import Table

from dsv4bench.model.shape import PRESETS
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import list_providers
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario, shipped_scenarios

app = typer.Typer(no_args_is_help=True, help="List providers, scenarios, models or stages.")


def _print(table: Table) -> None:
    Console(soft_wrap=False).print(table)


@app.command()
def providers() -> None:
    """Providers: name, source, the stages they implement, and why one is unavailable."""
    table = Table("provider", "source", "stages", box=None, header_style="bold")
    total = len({stage.name for stages in STAGES.values() for stage in stages})
    for info in list_providers():
        if info.unavailable:
            stages = f"unavailable: {info.unavailable}"
        elif len(info.stages) == total:
            stages = f"all {total}"
        else:
            stages = ", ".join(info.stages)
        table.add_row(info.name, info.source, stages)
    _print(table)


@app.command()
def scenarios() -> None:
    """Scenarios that ship; `dsv4bench run NAME` finds them from any folder."""
    table = Table("scenario", "cases", "what it shows", box=None, header_style="bold")
    for name in shipped_scenarios():
        scenario = load_scenario(name)
        table.add_row(name, str(len(expand(scenario))), scenario.description)
    _print(table)


@app.command()
def models() -> None:
    """Model presets; a path to a Hugging Face config.json works wherever a name does."""
    table = Table("model", "layers", "heads", "hidden", "top-k", "longest context", box=None, header_style="bold")
    for shape in PRESETS.values():
        layers = ", ".join(f"{shape.count(kind)} {kind}" for kind in shape.kinds)
        table.add_row(
            shape.name,
            layers,
            str(shape.num_heads),
            str(shape.hidden_size),
            str(shape.index_topk),
            f"{shape.max_positions:,}",
        )
    _print(table)


@app.command()
def stages() -> None:
    """Stages of each layer kind in execution order, with what they read and write."""
    for kind, of_kind in STAGES.items():
        table = Table("stage", "reads", "writes", title=f"{kind}", title_justify="left", box=None, header_style="bold")
        for stage in of_kind:
            table.add_row(stage.name, " ".join(sorted(stage.reads)), " ".join(sorted(stage.writes)))
        _print(table)
