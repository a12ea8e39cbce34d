"""The back ends there are. A new one is a file beside ptxas.py and a line here."""

from __future__ import annotations

from collections.abc import Callable

from gpt.asm.backend import Backend, Options
from gpt.asm.ptxas import Ptxas

BACKENDS: dict[str, Callable[[Options], Backend]] = {"sm": Ptxas}  # by family of the target
