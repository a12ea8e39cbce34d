"""TensorTrace: write the tensors in the variables of functions as lines of `tensor.trace`.

    [call]  TIME  SHAPE  BYTES  PTR  NAME  FUNCTION  FILE:LINE

Fields are separated by two spaces. TIME is in ns since the epoch, and PTR is decimal. gpt.tensors.trace does the work:
it records the tensors in the trace of the process, and gpt-neutrino copies the lines from there to the trace folder.
Without gpt-neutrino, they're written to standard error. torch isn't imported.
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
    """Unload the modules of a package called gpt, and return them."""
    names = [name for name in sys.modules if name == "gpt" or name.startswith("gpt.")]
    return {name: sys.modules.pop(name) for name in names}


def _find_tensors() -> ModuleType:
    """Import gpt.tensors from the installation of this Python, or else from the installation that contains this file.

    If the program has a package `gpt` of its own, whether it's already loaded or not, it can still import that
    afterwards.
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
    if sys.stderr:  # None would stand for standard output
        print("[call]", *words, f"{seen.file}:{seen.line}", sep="  ", file=sys.stderr)


_Trace: Any = _find_tensors().trace


class TensorTrace(_Trace):  # type: ignore[misc]
    """A context manager that writes a line for each tensor in variables of functions, once for each name."""

    def __init__(self) -> None:
        super().__init__(None if os.environ.get("GPT_HOOK_OUTPUT") else _print)


def tensortrace(function: _Function) -> _Function:
    """Run a function in a TensorTrace."""
    traced: _Function = TensorTrace()(function)
    return traced
