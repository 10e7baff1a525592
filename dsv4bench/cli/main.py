"""The entry point: which commands there are, and how errors become exit codes.

Only the module of the command that was asked for is imported, so that ``--help`` and the light commands start fast.
"""

import importlib
import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dsv4bench.errors import UserError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
MAY_BE_EMPTY = ("--build",)
"""Options whose value may be an empty word: what the GitHub action passes on as it is."""


@dataclass(frozen=True)
class Command:
    """Where a command lives, and what ``--help`` says of it without importing that module.

    Attributes:
        module: within ``dsv4bench.cli``.
        attribute: a function, or a typer app where the command has commands of its own.
        help: the first sentence of its own help.
    """

    module: str
    attribute: str
    help: str


COMMANDS = {
    "run": Command(
        "run", "run", "Measure a scenario: rows go to the run directory, the table to stdout, progress to stderr."
    ),
    "memory": Command(
        "memory",
        "memory",
        "Account the KV cache: ideal, as an engine reserves it, as a device gives it; and what fits.",
    ),
    "verify": Command(
        "verify",
        "verify",
        "Check a provider's stages against the reference on everything that implementations get wrong in the field.",
    ),
    "compare": Command("compare", "compare", "Compare runs case by case, worst first."),
    "ab": Command(
        "ab", "ab", "Measure two sides of a scenario against each other, round by round, and say what changed."
    ),
    "gate": Command("gate", "gate", "Give every case of a run a verdict against its base; works from files alone."),
    "baseline": Command("baseline", "app", "Store runs as baselines, look at them, thin them out."),
    "selftest": Command(
        "selftest",
        "selftest",
        "Measure a scenario against itself and store what differs: the gate's least tolerance per case.",
    ),
    "report": Command(
        "report",
        "report",
        "Print a run that is stored: its table, its stages, or where it loses most against the floor.",
    ),
    "plot": Command(
        "plot",
        "plot",
        "Write speedups.png, floors.png and kv_memory.png of a run, and what its schedules or models give beyond.",
    ),
    "list": Command("list", "app", "List providers, scenarios, models, stages or schedules."),
    "validate": Command(
        "validate",
        "validate",
        "Check scenarios without running anything; a mistake is named with its file and line (exit 2).",
    ),
    "schema": Command("schema", "schema", "Print the JSON Schema of scenario files."),
    "doctor": Command("doctor", "doctor", "Look at this machine: packages, GPUs and who uses them, timers, profilers."),
}
"""Every command, in the order of ``--help``."""


class _Commands(TyperGroup):
    """The root command; a wrong value is told without the prefix that pydantic gives typer's message."""

    def invoke(self, ctx: Any) -> Any:  # typer's own context class is private
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def build(asked: str | None) -> typer.Typer:
    """The command line: the command asked for in full, the others by name and help alone."""
    app = typer.Typer(
        name="dsv4bench",
        cls=_Commands,
        help="Benchmark, verify and size the DeepSeek V4 attention stack.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,  # plain help: its formatter costs 0.2 s at every start
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
        ] = False,
    ) -> None:
        pass

    for name, command in COMMANDS.items():
        if name != asked:
            app.command(name, help=command.help, short_help=command.help)(_elsewhere)  # short: wrapped, not cut off
            continue
        target = getattr(importlib.import_module(f"dsv4bench.cli.{command.module}"), command.attribute)
        if isinstance(target, typer.Typer):
            for verb in target.registered_commands:
                verb.short_help = inspect.getdoc(verb.callback)
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)
    return app


def main() -> None:
    """Run the command line; wrong input ends with one sentence on stderr and the exit code of its kind."""
    _settle_streams()
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        for ending in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(ending) is signal.SIG_DFL:  # nohup ignores one of them
                signal.signal(ending, _end)
        _refuse_empty(sys.argv[1:])
        sys.path.append(_working_directory())  # files of providers import what lies beside them, as under ``python -m``
        try:
            build(asked)()
        finally:
            sys.stdout.flush()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        _leave_pipe()
    except OSError as error:
        if error.filename is None:
            _silence_stdout()
        _fail(f"{error.filename or 'standard output'}: {error.strerror or error}", UserError.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            _leave_pipe()
        if end.code == INTERRUPTED:
            typer.echo("interrupted", err=True)
        raise


def _settle_streams() -> None:
    """Standard streams that exist, and show in place of a character that they can't encode another."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end(number: int, _: object) -> None:
    """End as on Ctrl-C when asked to by a signal, so that workers are stopped and files are closed."""
    sys.exit(128 + number)


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse words that a variable which isn't set leaves: ``--out ""`` would be the working directory."""
    for before, word in pairwise(("dsv4bench", *words)):
        if (not word and before not in MAY_BE_EMPTY) or re.fullmatch("--[a-z-]+=", word):
            where = f"with {word[:-1]}" if word else f"after {before}"
            raise UserError(f"nothing is given {where}; is a variable unset?")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UserError(f"the working directory can't be used: {error.strerror}; change to one that exists") from error


def _print_version(asked: bool) -> None:
    if asked:
        from dsv4bench import __version__

        typer.echo(f"dsv4bench {__version__}")
        raise typer.Exit


def _elsewhere() -> None:
    """Stands for a command that was not asked for."""


def _fail(sentence: str, code: int) -> None:
    with suppress(OSError):  # of a stderr that takes nothing; the code still says it
        typer.echo(f"error: {sentence}", err=True)
    sys.exit(code)


def _leave_pipe() -> None:
    """End as a program does whose reader has gone: quietly, and not with a code that means something else."""
    _silence_stdout()
    sys.exit(128 + signal.SIGPIPE)


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
