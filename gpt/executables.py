"""Entry points of the executables, called by gpt_start.py: `gpt.executables:NAME` runs gpt/stages/NAME.py.

Python turns Ctrl-C into an exception. A short run spends most of its time in imports, where nothing catches it, and the
user would see a traceback. So the first thing an executable does is to restore the default action, which ends it
silently like a program in C; `cli.run` catches the exception from then on. `_signal` is built in, whereas `signal` has
imports of its own.

For the same reason, code that few runs need is imported where it's needed, and typer only for command lines that
options.py can't parse. tests/test_options.py lists modules that must not be imported at start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
from collections.abc import Callable

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # not if a parent ignores it
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

# Imports create many objects that stay. With Python's thresholds, looking for garbage among them takes 5 to 10 % of a
# start.
gc.set_threshold(20_000, 20, 20)


def __getattr__(name: str) -> Callable[[], int]:
    """Return the entry point of a stage."""
    from importlib import import_module

    if name.startswith("_"):
        raise AttributeError(name)
    main: Callable[[], int] = import_module(f"gpt.stages.{name}").main
    return main
