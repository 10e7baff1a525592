"""``dsv4bench list``: what there is to choose from."""

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dsv4bench.cli.output import output_console
from dsv4bench.model.schedule import DEFAULT, SCHEDULES, Launch, Schedule, levels, make_schedule
from dsv4bench.model.shape import PRESETS, LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import list_providers
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario, shipped_scenarios

app = typer.Typer(no_args_is_help=True, help="List providers, scenarios, models, stages or schedules.")


def _print(table: Table) -> None:
    output_console().print(table)


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
        table.add_row(info.name, info.source, escape(stages))
    _print(table)


@app.command()
def scenarios() -> None:
    """Scenarios that ship; `dsv4bench run NAME` finds them from any folder."""
    table = Table("scenario", "cases", "what it shows", box=None, header_style="bold")
    for name in shipped_scenarios():
        scenario = load_scenario(name)
        table.add_row(name, str(len(expand(scenario))), escape(scenario.description))
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
    """Stages of each layer kind in execution order: what a provider's method takes, returns and writes in place.

    A parameter whose tensor has another name in the layer is followed by it.
    """
    for kind, of_kind in STAGES.items():
        table = Table(title=f"{kind}", title_justify="left", box=None, header_style="bold")
        table.add_column("stage", no_wrap=True)  # names are there to be copied
        table.add_column("parameters", ratio=2, overflow="fold")
        table.add_column("returns", ratio=1, overflow="fold")
        table.add_column("writes", ratio=1, overflow="fold")
        for stage in of_kind:
            taken = [name if name == tensor else f"{name}={tensor}" for name, tensor in stage.inputs.items()]
            table.add_row(stage.name, " ".join(taken), " ".join(stage.outputs), " ".join(stage.updates))
        _print(table)


@app.command()
def schedules(
    graph: Annotated[bool, typer.Option("--graph", help="Draw each: streams side by side, time downwards.")] = False,
    layer: Annotated[list[LayerKind] | None, typer.Option("--layer", help="Only these layer kinds.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Of the step; multi3 has a threshold.")] = 1,
) -> None:
    """Stream schedules of each layer kind: their streams, and the stages that wait for another stream."""
    found = [make_schedule(name, kind, tokens) for kind in layer or LayerKind for name in SCHEDULES]
    if not graph:
        table = Table("layer", "schedule", "streams", "waits", box=None, header_style="bold")
        for schedule in found:
            waits = sum(len(launch.after) for launch in schedule.launches)
            table.add_row(schedule.kind.value, schedule.name, ", ".join(schedule.streams), str(waits))
        _print(table)
        return
    for schedule in found:
        if schedule.streams != (DEFAULT,):
            _print(_drawn(schedule))


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
