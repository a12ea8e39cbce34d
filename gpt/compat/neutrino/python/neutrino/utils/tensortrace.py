"""TensorTrace: write the tensors in functions' variables as lines of `tensor.trace`.

    [call]  TIME  SHAPE  BYTES  PTR  NAME  FUNCTION  FILE:LINE

Fields are separated by two blanks; TIME is in ns since the epoch, PTR is decimal. gpt.tensors.trace does the work: it
records the tensors in the process's trace, and gpt-neutrino copies the lines from there to the trace folder. Without
gpt-neutrino they go to standard error. torch isn't imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

__all__ = ["TensorTrace", "tensortrace"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _take_modules() -> dict[str, ModuleType]:
    """Unload the modules of a package gpt, and return them."""
    names = [name for name in sys.modules if name == "gpt" or name.startswith("gpt.")]
    return {name: sys.modules.pop(name) for name in names}


def _find_tensors() -> ModuleType:
    """Import gpt.tensors from this Python's installation, or else from the installation that this file belongs to.

    A program may have a `gpt` of its own, loaded or not: it still imports that one.
    """
    found = getattr(sys.modules.get("gpt"), "__path__", None)
    if "gpt" not in sys.modules:
        spec = importlib.util.find_spec("gpt")
        found = spec and spec.submodule_search_locations
    if any(Path(folder, "tensors", "types.py").is_file() for folder in found or ()):
        return importlib.import_module("gpt.tensors")
    theirs = _take_modules()
    folder = Path(__file__).parents[5]
    spec = importlib.util.spec_from_file_location(
        "gpt", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec and spec.loader
    try:
        sys.modules["gpt"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["gpt"])
        return importlib.import_module("gpt.tensors")
    finally:
        _take_modules()
        sys.modules.update(theirs)


def _print(seen: Any) -> None:
    _, size, first, _, shape = seen.facts
    words = [time.time_ns(), f"torch.Size({list(shape)})", size, first, seen.name, seen.function]
    if sys.stderr:  # None would be standard output
        print("[call]", *words, f"{seen.file}:{seen.line}", sep="  ", file=sys.stderr)


_Trace: Any = _find_tensors().trace


class TensorTrace(_Trace):  # type: ignore[misc]
    """A context manager that writes a line for each tensor in functions' variables, once under each name."""

    def __init__(self) -> None:
        super().__init__(None if os.environ.get("GPT_HOOK_OUTPUT") else _print)


def tensortrace(function: _Function) -> _Function:
    """Run a function in a TensorTrace."""
    traced: _Function = TensorTrace()(function)
    return traced
