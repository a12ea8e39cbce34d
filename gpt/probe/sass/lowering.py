"""Lower a kernel's placed snippets to bodies (body.py).

A body depends on its probe file, the face, and which of the file's snippets the kernel has: they decide which registers
are constants or zeros, and which fields of a total stay idle. It doesn't depend on other probe files, so
several probes together have the same bodies as each alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.lower.registers import Names
from gpt.probe.model import ProbeFile
from gpt.probe.plan.function import PlacedSnippet
from gpt.probe.plan.plan import Plan
from gpt.probe.sass.body import Body, is_guarded, lower
from gpt.probe.sass.function import SassFunction
from gpt.probe.sass.values import find_constants


class Lowered(NamedTuple):
    """A snippet's body; `bare` is the body without the site's guard."""

    body: Body
    kept: set[str]
    bare: Body | None


class Lowerer:
    """Lowers snippets, and remembers the results for other kernels."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Lowered | str] = {}
        self._files: dict[int, ProbeFile] = {}  # kept, so that no other file gets the same id

    def run(
        self, plan: Plan, function: SassFunction, files: Sequence[ProbeFile]
    ) -> tuple[list[Names], list[tuple[PlacedSnippet, Lowered | str]]]:
        """Return each file's registers, and each use with its body, or with the reason why it can't have one."""
        self._files |= {id(file): file for file in files}
        names, constants, states = examine(plan, function, files)
        ends: list[set[int]] = [set() for _ in files]  # ids of the snippets at the exits
        for use in function.uses:
            if use.place.kind in ("exit", "leave"):
                ends[use.file].add(id(use.snippet))
        found = []
        for use in function.uses:
            final = len(ends[use.file]) == 1 and use.place.kind == "exit"
            key = (
                use.file,
                states[use.file],
                id(use.snippet),
                use.when,
                use.face,
                use.place.kind,
                use.inverts_guard,
                final,
            )
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = _lower(plan, function, names, use, constants[use.file], final)
            found.append((use, made))
        return names, found


def examine(
    plan: Plan, function: SassFunction, files: Sequence[ProbeFile]
) -> tuple[list[Names], list[dict[str, str]], list[Hashable]]:
    """Return three things for each file: its registers, which of them are constants, and everything in a kernel that
    its bodies depend on, except faces.
    """
    names, constants, states = list[Names](), list[dict[str, str]](), list[Hashable]()
    uses: list[list[PlacedSnippet]] = [[] for _ in files]
    for use in function.uses:
        uses[use.file].append(use)
    for number, file in enumerate(files):
        zeros = plan.find_zeros(number)
        names.append(Names(file, "p_", zeros))
        constants.append(find_constants(file, names[-1], uses[number]))
        maps = tuple((placed.param, placed.counted, placed.idle) for placed in plan.maps[number].values())
        states.append((id(file), frozenset(zeros), frozenset(constants[-1].items()), maps))
    return names, constants, states


def _lower(
    plan: Plan,
    function: SassFunction,
    names: list[Names],
    use: PlacedSnippet,
    constants: dict[str, str],
    is_final: bool,
) -> Lowered | str:
    try:
        body, kept = lower(plan, names, use, constants, is_final=is_final)
        bare = None
        if is_guarded(body) and use.face and not use.inverts_guard:
            plain = use._replace(face=function.find_plain(use.site.first))
            bare, _ = lower(plan, names, plain, constants, is_final=is_final)
        return Lowered(body, kept, bare)
    except CannotProbe as error:
        return str(error)
