"""The code that all command lines share: common options, running a stage, and reporting errors.

A stage is a function that's passed to `run`. Its parameters are options, declared with options.py or typer. It reads
and writes through a `Stage` (gpt/stream/stage.py).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import gpt
from gpt.base import messages, options, signals
from gpt.base.errors import EmptyPipeError, GptError, MissingError, UsageError
from gpt.base.options import Option
from gpt.base.printable import printable


class Done(Exception):
    """Raised by an option that has printed its answer, to exit with status 0."""


def show(text: object) -> None:
    """Write text to standard output, with a newline if it has none. Raises OSError, signals.Terminated."""
    data = str(text).encode(errors="surrogateescape")
    rest = memoryview(data if data.endswith(b"\n") else data + b"\n")
    try:
        while rest:
            rest = rest[os.write(1, rest) :]
    except BrokenPipeError:
        raise signals.Terminated(signal.SIGPIPE) from None
    except OSError as error:
        error.filename = "<stdout>"
        raise


def _show_version(value: bool) -> None:
    if value:
        show(f"{_tool} {gpt.__version__}")
        raise Done


def _set_verbose(value: bool) -> bool:
    global verbose
    verbose = value
    return value


verbose = False  # show tracebacks of errors, and tables with a row for each element
_tool = ""  # name for --version

Json = Annotated[bool, Option("--json", help="Write one JSON object per line.")]
Stream = Annotated[bool, Option("--stream", help="Write the stream instead of tables.")]
Table = Annotated[bool, Option("--table", help="Print tables, as on a terminal.")]
FromJson = Annotated[bool, Option("--from-json", help="Read JSON lines.")]
Probes = Annotated[
    list[str] | None,
    Option("--probe", "-p", metavar="PROBE", help="A probe file or a built-in probe; repeatable."),
]
Kernels = Annotated[
    list[str] | None,
    Option("--kernel", "-k", metavar="NAME:...", help="Only kernels whose name contains one of these."),
]
Filter = Annotated[
    list[str] | None,
    Option("--filter", metavar="NAME:...", help="No kernels whose name contains one of these."),
]
NoVerify = Annotated[bool, Option("--no-verify", help="Don't check that probes are harmless.")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", callback=_set_verbose, is_eager=True, help="Show the traceback of an error.")
]
VerboseSummary = Annotated[
    bool,
    Option(
        *("--verbose", "-v"),
        callback=_set_verbose,
        is_eager=True,
        help="Show ioctls, too; show the traceback of an error.",
    ),
]
VerboseRows = Annotated[
    bool,
    Option(
        *("--verbose", "-v"),
        callback=_set_verbose,
        is_eager=True,
        help="Give each recompressed element a row in the table; show the traceback of an error.",
    ),
]
Version = Annotated[
    bool,
    Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
]


def run(
    tool: str,
    command: Callable[..., int] | Mapping[str, Callable[..., int]],
    about: str = "",
    before: Callable[..., None] | None = None,
    words_after: bool = False,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run the command of a stage with sys.argv, and return its exit status. It raises no exceptions.

    If there are several commands, the first word chooses one; `about` is the text of --help for all of them, and
    `before` has the options that may come before the command. With `words_after`, everything from the first operand on
    belongs to a program that the stage runs, including options. `defaults` has values for options --NAME[=VALUE] that
    have no value on the command line.
    """
    global _tool
    _tool = tool
    _occupy_closed()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # stop numpy from starting threads that no stage uses
    try:
        signals.catch()
        try:
            words = [f"{word}={defaults[word]}" if word in defaults else word for word in sys.argv[1:]]
            return _call(tool, command, words, about, before or _no_command, words_after)
        except Done:
            return 0
        except SystemExit:  # typer raises this only for a broken pipe under --help
            return signals.die(signal.SIGPIPE)
        except Exception as error:
            return _report(tool, error, list(command) if isinstance(command, Mapping) else [])
        finally:
            signals.release()
    except signals.Terminated as ended:
        return signals.die(ended.number)


def _call(
    tool: str,
    command: Callable[..., int] | Mapping[str, Callable[..., int]],
    words: list[str],
    about: str,
    before: Callable[..., None],
    words_after: bool,
) -> int:
    """Run the command for these words. If the command line is simple, typer isn't needed to parse it."""
    plain: Callable[..., int | None] = before if isinstance(command, Mapping) else command
    rest = words
    if isinstance(command, Mapping) and words and words[0] in command:
        plain, rest = command[words[0]], words[1:]
    given = options.read(plain, rest, words_after)
    if given is not None and plain is not before:
        return int(plain(**given) or 0)

    import typer

    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
    if words_after:
        settings["allow_interspersed_args"] = False
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings
    )
    if isinstance(command, Mapping):
        app.callback(help=about)(options.for_typer(before))
        for name, one in command.items():
            app.command(name)(options.for_typer(one))
    else:
        app.command(context_settings=settings)(options.for_typer(command))
    return int(app(args=words, prog_name=tool, standalone_mode=False) or 0)


def check_names(option: str, values: Iterable[str]) -> None:
    """Raise UsageError for an empty filter, which may be due to an empty variable in a script.

    Some tools would select all kernels with it, others none.
    """
    for value in values:
        if not value:
            raise UsageError("'' names no kernel", option)


def split_parts(option: str, values: Iterable[str]) -> list[str]:
    """Return all parts of values that have the form NAME:...

    The option can be repeated, as in gpt-hook. Raises UsageError for an empty value.
    """
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
    """Open /dev/null for standard descriptors that are closed, so that no file opened later gets their numbers.

    The modes are wrong on purpose: using them still fails, as with a closed descriptor.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number


def _report(tool: str, error: Exception, commands: list[str]) -> int:
    """Report an exception in one line on standard error, and return the exit status for it.

    `commands` are the words that the command line may begin with.
    """
    if verbose:
        import traceback

        lines = "".join(traceback.format_exception(error)).splitlines()
        messages.write("".join(printable(line) + "\n" for line in lines))
    if isinstance(error, EmptyPipeError):
        return error.status
    if isinstance(error, GptError):
        messages.say(tool, "error", error.where, error.fact)
        return error.status
    if hasattr(error, "format_message"):  # from typer: a bad option or argument
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
