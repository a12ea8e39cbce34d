"""Runs when Python starts under 'gpt-hook run --layers', as its folder is first in PYTHONPATH: installs gpt.layers, and
runs the sitecustomize that would have run otherwise.

The program may have a package named gpt, so the one here is loaded by its path.
"""

import importlib
import importlib.util
import os
import sys
from typing import Any

_here = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_next() -> None:
    """Import the next sitecustomize in the path in place of this one."""
    kept = sys.path[:]
    sys.path[:] = [path for path in kept if os.path.abspath(path or ".") != _here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this
    finally:
        if sys.path == [path for path in kept if os.path.abspath(path or ".") != _here]:
            sys.path[:] = kept


try:
    _load("_gpt_layers", os.path.join(_here, "__init__.py")).install(_load)
except Exception as error:  # the program runs as usual
    if sys.stderr:  # else print() would write to the program's output
        print("gpt.layers: warning: no modules are recorded:", repr(error), file=sys.stderr)
_run_next()
