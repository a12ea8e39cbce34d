"""What all command lines share: options, and how a run ends.

A stage is a function with typer options, handed to `run`; what it reads and writes goes through a `Stage` (stage.py).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

import gpt
from gpt import messages, signals
from gpt.errors import EmptyPipeError, GptError, MissingError, UsageError
from gpt.printable import printable


def _show_version(context: typer.Context, value: bool) -> None:
    if value:
        typer.echo(f"{context.find_root().info_name} {gpt.__version__}")
        raise typer.Exit


def _set_verbose(value: bool) -> bool:
    global verbose
    verbose = value
    return value


verbose = False  # whether a fault shows its traceback

Json = Annotated[bool, typer.Option("--json", help="Write one JSON object per line.")]
Stream = Annotated[bool, typer.Option("--stream", help="Write the stream, not tables.")]
Table = Annotated[bool, typer.Option("--table", help="Print tables, as on a terminal.")]
FromJson = Annotated[bool, typer.Option("--from-json", help="Read JSON lines.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", callback=_set_verbose, is_eager=True, help="Show the traceback of an error.")
]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
]


def run(
    tool: str,
    command: Callable[..., int] | dict[str, Callable[..., int]],
    about: str = "",
    before: Callable[..., None] | None = None,
    words_after: bool = False,
) -> int:
    """Runs a stage's command over sys.argv and returns its exit status. No exception leaves it.

    With several commands the first word says which; `about` is what --help says of all of them, and `before` has the
    options that may stand before it. With `words_after` what follows the first word that is not an option belongs to a
    program that the stage runs, options and all.
    """
    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
    if words_after:
        settings["allow_interspersed_args"] = False
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings
    )
    if isinstance(command, dict):
        app.callback(help=about)(before or _no_command)
        for name, one in command.items():
            app.command(name)(one)
    else:
        app.command(context_settings=settings)(command)
    _occupy_closed()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts threads that no stage uses
    try:
        signals.catch()
        try:
            return int(app(args=sys.argv[1:], prog_name=tool, standalone_mode=False) or 0)
        except SystemExit:  # typer's answer to a pipe that breaks under --help, and to nothing else
            return signals.die(signal.SIGPIPE)
        except Exception as error:
            return _report(tool, error, list(command) if isinstance(command, dict) else [])
        finally:
            signals.release()
    except signals.Terminated as ended:
        return signals.die(ended.number)


def check_names(option: str, values: Iterable[str]) -> None:
    """Raises UsageError for a filter that is empty, as a variable of a script may be.

    Depending on the tool it would mean every kernel, or none.
    """
    for value in values:
        if not value:
            raise UsageError("'' names no kernel", option)


def split_parts(option: str, values: Iterable[str]) -> list[str]:
    """Return the parts of names that a repeatable NAME:... lists, as gpt-hook takes it. Raises UsageError for none."""
    found = []
    for value in values:
        parts = [part for part in value.split(":") if part]
        if not parts:
            raise UsageError(f"'{value}' names no part of a kernel's name", option)
        found += parts
    return found


def _no_command(version: Version = False) -> None:
    pass


def _occupy_closed() -> None:
    """Fills standard descriptors that came closed, so that no file that is opened later takes their place.

    The modes are the wrong ones: using them fails as it does with a closed one.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number


def _report(tool: str, error: Exception, commands: list[str]) -> int:
    """One line on standard error for whatever went wrong, and the exit status that goes with it.

    `commands` are the words that may come first.
    """
    if verbose:
        lines = "".join(traceback.format_exception(error)).splitlines()
        messages.write("".join(printable(line) + "\n" for line in lines))
    if isinstance(error, EmptyPipeError):
        return error.status
    if isinstance(error, GptError):
        messages.say(tool, "error", error.where, error.fact)
        return error.status
    if hasattr(error, "format_message"):  # typer's own: a bad option or argument
        fact = error.format_message().rstrip(".")
        word = fact.startswith(("No such command", "Missing command"))
        hint = f"there are {', '.join(commands)}" if word else f"see {tool} --help"
        messages.say(tool, "error", "", f"{fact} ({hint})")
        return UsageError.status
    if isinstance(error, OSError):
        messages.say(tool, "error", str(error.filename or ""), error.strerror or str(error))
        missing = isinstance(error, FileNotFoundError | PermissionError)
        return MissingError.status if missing else GptError.status
    if isinstance(error, MemoryError):
        messages.say(tool, "error", "", "out of memory")
        return GptError.status
    messages.say(
        tool,
        "error",
        "",
        f"internal error: {type(error).__name__}: {error} (-v shows where; please report it)",
    )
    return GptError.status
