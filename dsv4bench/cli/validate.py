"""``dsv4bench validate``: is a scenario right, and how many cases is it?"""

from typing import Annotated

import typer

from dsv4bench.cli.cases import known_cases, unused_baselines
from dsv4bench.errors import UserError
from dsv4bench.scenario.loader import load_scenario


def validate(
    scenarios: Annotated[list[str], typer.Argument(help="Scenario files, or names of shipped scenarios.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
) -> None:
    """Check scenarios without running anything; a mistake is named with its file and line (exit 2)."""
    mistakes = []
    for name in scenarios:
        try:
            scenario = load_scenario(name, overrides or ())
        except UserError as error:
            mistakes.append(str(error))
            continue
        try:
            cases = known_cases(scenario)
        except UserError as error:  # of what the values mean together: no line is to blame
            mistakes.append(f"{name}: {error}")
            continue
        typer.echo(f"{name}: valid, {len(cases)} case{'s' if len(cases) != 1 else ''}")
        for sentence in unused_baselines(scenario, cases):
            typer.echo(f"note: {name}: {sentence}", err=True)
    if mistakes:
        raise UserError("\n".join(mistakes))
