"""Where executables begin, after gpt_start.py: `gpt.executables:NAME` is that of gpt/stages/NAME.py.

Python makes an exception of an interrupt, and most of a short run is imports, which nothing guards. So the first thing
that an executable does is to let an interrupt end it at once and silently, as it ends a program in C; from `cli.run` on
it is caught. `_signal` is built in, while `signal` takes imports of its own.

Most of a short run is imports, so what few runs need is imported where it is needed, and typer only where a command
line is not plain (options.py). tests/test_options.py lists what a start may not import.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from collections.abc import Callable

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # not if it is to be ignored, as by nohup
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def __getattr__(name: str) -> Callable[[], int]:
    """The entry point of a stage."""
    from importlib import import_module

    if name.startswith("_"):
        raise AttributeError(name)
    main: Callable[[], int] = import_module(f"gpt.stages.{name}").main
    return main
