"""The entry point: which commands there are, and how errors become exit codes.

Only the module of the command that was asked for is imported, so that ``--help`` and the light commands start fast.
"""

import importlib
import sys
from typing import Annotated

import typer

from dsv4bench import __version__
from dsv4bench.errors import UserError

COMMANDS = {
    "run": "dsv4bench.cli.run:run",
    "memory": "dsv4bench.cli.memory:memory",
    "verify": "dsv4bench.cli.verify:verify",
    "compare": "dsv4bench.cli.compare:compare",
    "ab": "dsv4bench.cli.ab:ab",
    "gate": "dsv4bench.cli.gate:gate",
    "baseline": "dsv4bench.cli.baseline:app",
    "selftest": "dsv4bench.cli.selftest:selftest",
    "plot": "dsv4bench.cli.plot:plot",
    "list": "dsv4bench.cli.list:app",
    "validate": "dsv4bench.cli.validate:validate",
    "schema": "dsv4bench.cli.schema:schema",
    "doctor": "dsv4bench.cli.doctor:doctor",
}
"""Command → ``module:attribute``: a function, or a typer app where the command has commands of its own."""


def build(names: list[str]) -> typer.Typer:
    """The command line with the given commands."""
    app = typer.Typer(
        name="dsv4bench",
        help="Benchmark, verify and size the DeepSeek V4 attention stack.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )

    @app.callback()
    def root(
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
    ) -> None:
        if version:
            typer.echo(f"dsv4bench {__version__}")
            raise typer.Exit

    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)
    return app


def main() -> None:
    """Run the command line; wrong input ends with one sentence on stderr and the exit code of its kind."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build([asked] if asked in COMMANDS else list(COMMANDS))()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
