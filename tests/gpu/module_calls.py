"""Find the two functions through which Python may call torch.nn.Module.__call__: Python's own, and its replacement
under --layers.
"""

from __future__ import annotations

import ctypes
from types import FunctionType

from torch import nn


def find_vectorcall() -> ctypes.c_void_p:
    """Return the location in torch.nn.Module.__call__ of the address that Python calls, which --layers replaces."""
    words = object.__basicsize__ + 5 * ctypes.sizeof(ctypes.c_void_p)
    place = ctypes.c_ssize_t.from_address(id(FunctionType) + words).value
    return ctypes.c_void_p.from_address(id(nn.Module.__call__) + place)


def find_original() -> int:
    """Return the address of Python's own function for calls of functions."""
    find = ctypes.pythonapi.PyVectorcall_Function
    find.argtypes, find.restype = [ctypes.py_object], ctypes.c_void_p
    found: int = find(find_original)
    return found
