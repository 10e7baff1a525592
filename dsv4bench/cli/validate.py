"""``dsv4bench validate``: is a scenario right, and how many cases is it?"""

from typing import Annotated

import typer

from dsv4bench.providers.registry import require_known
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario


def validate(
    scenarios: Annotated[list[str], typer.Argument(help="Scenario files, or names of shipped scenarios.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
) -> None:
    """Check scenarios without running anything; a mistake is named with its file and line (exit 2)."""
    for name in scenarios:
        scenario = load_scenario(name, overrides or ())
        cases = expand(scenario)
        for spec in dict.fromkeys(name for case in cases for name in case.provider.names):
            require_known(spec)
        typer.echo(f"{name}: valid, {len(cases)} case{'s' if len(cases) != 1 else ''}")
