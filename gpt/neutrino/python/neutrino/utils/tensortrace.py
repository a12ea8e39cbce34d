"""TensorTrace: which tensors the functions of a program are called with, as lines of `tensor.trace`.

    [call]  TIME  SHAPE  BYTES  PTR  NAME  FUNCTION  FILE:LINE

Two blanks are between them; the time is in ns since the epoch, the address is decimal. A tensor is what has `shape`
and `data_ptr()`: nothing of torch is imported. Below gpt-neutrino the lines are in the trace folder of the process,
otherwise on standard error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, TextIO, TypeVar

__all__ = ["TensorTrace", "tensortrace"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class TensorTrace:
    """While it is entered, each call of a Python function writes a line for each argument that is a tensor."""

    def __init__(self) -> None:
        self._file: TextIO = sys.stderr
        self._before: Any = None

    def __enter__(self) -> TensorTrace:
        if folder := os.environ.get("GPT_NEUTRINO_TENSORS"):
            os.makedirs(folder, 0o700, exist_ok=True)
            self._file = open(os.path.join(folder, str(os.getpid())), "a", buffering=1)
        self._before = sys.getprofile()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.setprofile(self._before)
        if self._file is not sys.stderr:
            self._file.close()

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or "jit" in frame.f_code.co_filename:
            return
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value = frame.f_locals.get(name)
            if hasattr(type(value), "data_ptr") and hasattr(value, "shape"):
                self._write(value, name, code.co_name, f"{code.co_filename}:{frame.f_lineno}")

    def _write(self, value: Any, name: str, function: str, place: str) -> None:
        try:
            storage = getattr(value, "untyped_storage", None)
            size = storage().nbytes() if storage else value.nbytes
            words = ["[call]", time.time_ns(), value.shape, size, value.data_ptr(), name, function, place]
        except Exception:  # a tensor without memory, as of a compiler
            return
        print(*words, sep="  ", file=self._file)


def tensortrace(function: _Function) -> _Function:
    """Runs a function in a TensorTrace."""

    @wraps(function)
    def traced(*arguments: Any, **named: Any) -> Any:
        with TensorTrace():
            return function(*arguments, **named)

    return traced  # type: ignore[return-value]
