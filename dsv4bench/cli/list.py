"""``dsv4bench list``: what there is to choose from."""

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dsv4bench.cli.console import output_console
from dsv4bench.cli.output import Format, print_records
from dsv4bench.errors import UserError
from dsv4bench.model.schedule import DEFAULT, SCHEDULES, Launch, Schedule, levels, make_schedule
from dsv4bench.model.shape import PRESETS, LayerKind
from dsv4bench.model.stage import STAGES, Stage
from dsv4bench.providers.registry import list_providers
from dsv4bench.report.records import Shown
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario, shipped_scenarios

app = typer.Typer(no_args_is_help=True, help="List providers, scenarios, models, stages or schedules.")


FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]


def _print(table: Table) -> None:
    output_console().print(table)


@app.command()
def providers(format: FormatOption = Format.TABLE) -> None:
    """Providers: name, source, the stages they implement, and why one is unavailable here."""
    total = len({stage.name for stages in STAGES.values() for stage in stages})
    records = [
        {"provider": info.name, "source": info.source, "stages": list(info.stages), "unavailable": info.unavailable}
        for info in list_providers()
    ]
    shown: Shown = {"stages": lambda stages: f"all {total}" if len(stages) == total else ", ".join(stages)}
    print_records(records, format, shown)


@app.command()
def scenarios(format: FormatOption = Format.TABLE) -> None:
    """Scenarios that ship; `dsv4bench run NAME` finds them from any folder."""
    found = [(name, load_scenario(name)) for name in shipped_scenarios()]
    records = [
        {"scenario": name, "cases": len(expand(scenario)), "what it shows": scenario.description}
        for name, scenario in found
    ]
    print_records(records, format, {})


@app.command()
def models(format: FormatOption = Format.TABLE) -> None:
    """Model presets; a path to a Hugging Face config.json works wherever a name does."""
    records = [
        {
            "model": shape.name,
            "layers": ", ".join(f"{shape.count(kind)} {kind}" for kind in shape.kinds),
            "heads": shape.num_heads,
            "hidden": shape.hidden_size,
            "top-k": shape.index_topk,
            "longest context": shape.max_positions,
        }
        for shape in PRESETS.values()
    ]
    print_records(records, format, {"longest context": "{:,}".format})


@app.command()
def stages(format: FormatOption = Format.TABLE) -> None:
    """Stages of each layer kind in execution order: what a provider's method takes, returns and writes in place.

    A parameter whose tensor has another name in the layer is followed by it.
    """
    if format is not Format.TABLE:
        records = [
            {
                "layer": kind.value,
                "stage": stage.name,
                "parameters": _taken(stage),
                "returns": list(stage.outputs),
                "writes": list(stage.updates),
            }
            for kind, of_kind in STAGES.items()
            for stage in of_kind
        ]
        print_records(records, format, {"parameters": " ".join, "returns": " ".join, "writes": " ".join})
        return
    for kind, of_kind in STAGES.items():
        table = Table(title=f"{kind}", title_justify="left", box=None, header_style="bold")
        table.add_column("stage", no_wrap=True)  # names are there to be copied
        table.add_column("parameters", ratio=2, overflow="fold")
        table.add_column("returns", ratio=1, overflow="fold")
        table.add_column("writes", ratio=1, overflow="fold")
        for stage in of_kind:
            table.add_row(stage.name, " ".join(_taken(stage)), " ".join(stage.outputs), " ".join(stage.updates))
        _print(table)


@app.command()
def schedules(
    graph: Annotated[bool, typer.Option("--graph", help="Draw each: streams side by side, time downwards.")] = False,
    layer: Annotated[list[LayerKind] | None, typer.Option("--layer", help="Only these layer kinds.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Of the step; multi3 has a threshold.")] = 1,
    format: FormatOption = Format.TABLE,
) -> None:
    """Stream schedules of each layer kind: their streams, and the stages that wait for another stream."""
    if graph and format is not Format.TABLE:
        raise UserError(f"--graph is a drawing: it can't be printed as {format}; leave out --graph or --format")
    found = [make_schedule(name, kind, tokens) for kind in layer or LayerKind for name in SCHEDULES]
    if not graph:
        records = [
            {
                "layer": schedule.kind.value,
                "schedule": schedule.name,
                "streams": list(schedule.streams),
                "waits": sum(len(launch.after) for launch in schedule.launches),
            }
            for schedule in found
        ]
        print_records(records, format, {"streams": ", ".join})
        return
    for schedule in found:
        if schedule.streams != (DEFAULT,):
            _print(_drawn(schedule))


def _taken(stage: Stage) -> list[str]:
    """A stage's parameters, each with its tensor's name in the layer where that is another."""
    return [name if name == tensor else f"{name}={tensor}" for name, tensor in stage.inputs.items()]


def _drawn(schedule: Schedule) -> Table:
    """A column per stream, a row per level; what a stage waits for stands below it."""
    title = f"{schedule.kind} {schedule.name}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, header_style="bold")
    for stream in schedule.streams:
        table.add_column(stream, overflow="fold")  # names are there to be copied, not cut off
    for row in levels(schedule):
        table.add_row(*(_cell(row[stream]) if stream in row else "" for stream in schedule.streams))
    return table


def _cell(launch: Launch) -> str:
    return "\n".join((launch.stage, *(f"[dim]└ after {name}[/dim]" for name in launch.after)))
