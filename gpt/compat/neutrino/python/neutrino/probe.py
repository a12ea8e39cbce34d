"""`from neutrino import probe`: marks a function as a probe.

A probe file is compiled, and never executed (gpt-probe(5)). If somebody imports it anyway, its functions don't change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Probe(ModuleType):
    def __call__(self, **options: Any) -> Callable[[Any], Any]:
        return lambda function: function


sys.modules[__name__].__class__ = _Probe
