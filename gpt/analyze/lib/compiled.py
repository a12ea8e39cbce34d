"""Find kernels that a program compiles again and again while it runs, for example for each new shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from gpt.base.printable import shorten
from gpt.screen.brief import brief_name

if TYPE_CHECKING:
    from gpt.trace.process import Process

AGAIN = 3  # minimum number of modules that have the kernel
WIDEST = 60  # width of a name


def find_compiled(process: Process, launched: Collection[int]) -> tuple[str, int] | None:
    """Return the kernel that was compiled most often, and how often, or None if that's less than AGAIN times.

    A compiler within the program loads its kernels from memory, and uses the same name each time it compiles one again.
    `launched` has the ids of functions that ran.
    """
    from_memory = {number for number, module in process.modules if module.path is None}
    modules: dict[str, set[int]] = defaultdict(set)
    for function in process.functions:
        if function.id in launched and function.module in from_memory:
            modules[function.name].add(function.module)
    most = max(modules, key=lambda name: (len(modules[name]), name), default=None)
    return (most, len(modules[most])) if most is not None and len(modules[most]) >= AGAIN else None


def describe_compiled(found: tuple[str, int] | None) -> str:
    """Return the end of a sentence that names the kernel, if there is one."""
    if not found:
        return "for example kernels that it has compiled"
    name, times = found
    return f"so it compiles kernels, {shorten(brief_name(name), WIDEST, middle=False)} {times:,} times"
