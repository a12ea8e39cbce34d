"""Compile the code of the built-in probes for the package: python -m gpt.packaging.snippets FILE

gpt-sass-probe then needs no ptxas for these probes. FILE has one body (gpt/probe/sass/body.py) for each face at which a
built-in probe can go, and for each set of snippets that a kernel can have. They don't come from any library: the faces
are all that gpt/sass/faces.py can return, and each probe is placed at all of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path

from gpt.base.cache import Cache
from gpt.base.errors import MissingError
from gpt.probe.model import ProbeFile
from gpt.probe.plan.plan import Plan
from gpt.probe.read.load import load_all
from gpt.probe.sass.body import make_initial
from gpt.probe.sass.function import COPIED, OTHER, SassFunction, Statement, list_guards
from gpt.probe.sass.lowering import Lowered, Lowerer, examine
from gpt.probe.sass.shipped import Shipped, dump
from gpt.probe.sass.snippets import Compiler
from gpt.sass.check_words import UNMOVABLE
from gpt.sass.faces import ARCH, FACES
from gpt.sass.tables import table_of

PROBES = Path(__file__).parents[2] / "probes"
RESULT = 0xFF << 16  # the register of an atomic's result; all ones if it has none
EXIT = Statement("instruction", "exit", "")
ARRIVE = 0x9A7  # SYNCS with a register for the arrivals
_ATOMIC = (*range(73, 77), *range(87, 91))
_TENSOR = (75, 76, *range(79, 83), *range(87, 91))
_BITS: dict[str, tuple[int, ...]] = {  # the bits of an instruction that its face depends on
    **dict.fromkeys(("LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL"), (73, 74, 75)),
    **dict.fromkeys(("REDG", "ATOMG", "ATOM", "ATOMS"), _ATOMIC),
    "LDGSTS": (73, 74, 75, 81),
    **dict.fromkeys(("LDSM", "STSM"), (72, 73, 78)),
    "BAR": (74, 75, 77, 78, 79),
    "HMMA": (75, 76, 78, 82, 83),
    "IMMA": (74, 75, 76, 78, 86),
    "DMMA": (76, 77),
    "UBLKCP": (73, 74, 75, 76),
    "UBLKRED": (73, 74, 76, *range(81, 85), *range(87, 91)),
    "UBLKPF": (76,),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF"), _TENSOR),
    "SYNCS": (73, 74, 75, 84, 85, 86),
}


def list_statements() -> dict[Statement, bool]:
    """Return every instruction that a probe may see, with each guard, and if it can be moved. If it can't, a few of
    its faces are enough: they only make a kernel need their snippets' registers.
    """
    found: dict[Statement, bool] = {}
    for (name, _), face in FACES.items():
        heads = {face} if isinstance(face, str) else {face(word) for word in _iter_words(name)}
        widths = COPIED.values() if name == "LDGSTS" else [0]
        for head in sorted(head for head in heads if head and name != "EXIT"):
            for guard, width in itertools.product(list_guards(name), widths):
                found[Statement("instruction", head, guard, width)] = name not in UNMOVABLE
    return found


def _iter_words(name: str) -> Iterator[int]:
    first = ARRIVE if name == "SYNCS" else 0
    values = [(0, 1 << bit) for bit in _BITS.get(name, ())]
    results = (0, RESULT) if name.startswith("ATOM") else (0,)
    for chosen in itertools.product(results, *values):
        yield first | sum(chosen)


class Texts:
    """Collects the texts of a probe file's bodies. With `count`, bodies only count records."""

    def __init__(self, file: ProbeFile, statements: dict[Statement, bool], *, count: bool) -> None:
        self._file, self._count, self._lowerer = file, count, Lowerer()
        self._can_move = statements
        self.found: dict[str, None] = {}
        kinds = self._group(list(statements))
        sets = [itertools.combinations(kinds, number) for number in range(len(kinds) + 1)]
        seen: set[tuple[Hashable, Hashable]] = set()
        for some in itertools.chain.from_iterable(sets):
            plan, function = self._plan([kinds[kind][0] for kind in some])
            state = examine(plan, function, [file])[2][0]
            if new := {(state, kind) for kind in (*some, None)} - seen:
                seen |= new
                chosen = [kinds[kind] if (state, kind) in new else kinds[kind][:1] for kind in some]
                self._add(*self._plan(list(itertools.chain(*chosen))))

    def _group(self, statements: list[Statement]) -> dict[Hashable, list[Statement]]:
        """Group the instructions by the snippets that can be lowered there, and keep one for each set of bodies."""
        placed: dict[int, list[tuple[Hashable, Lowered]]] = {}
        for use, one in self._lowerer.run(*self._plan(statements), [self._file])[1]:
            if use.site.kind == "instruction" and not isinstance(one, str):
                placed.setdefault(use.site.first - 1, []).append(((id(use.snippet), use.when), one))
        found: dict[Hashable, dict[Hashable, Statement]] = {}
        for number, some in placed.items():
            texts = (
                self._can_move[statements[number]],
                *[(one.body.text, one.bare and one.bare.text) for _, one in some],
            )
            found.setdefault(tuple(kind for kind, _ in some), {}).setdefault(texts, statements[number])
        return {kind: list(some.values()) for kind, some in found.items()}

    def _plan(self, statements: list[Statement]) -> tuple[Plan, SassFunction]:
        """Place the probes in a kernel made up of these instructions. Return the plan and the function."""
        function = SassFunction("", [OTHER, *statements, EXIT])
        return Plan("", [function], [self._file], "", self._count), function

    def _add(self, plan: Plan, function: SassFunction) -> None:
        (names,), found = self._lowerer.run(plan, function, [self._file])
        for use, one in found:
            at = function.statements[use.site.first]
            if isinstance(one, str) or not self._can_move.get(at, True):
                continue
            self.found |= {body.text: None for body in (one.body, one.bare) if body}
            self.found |= {make_initial(names, 0, name).text: None for name in sorted(one.kept)}


def build(path: Path) -> None:
    """Write the file. Bodies that it has already aren't compiled again."""
    old = Shipped(path)
    compiler = Compiler(ARCH, table_of(ARCH), Cache(None), old)
    statements = list_statements()
    groups = []
    for file in load_all(sorted(map(str, PROBES.glob("*.toml")))):
        texts = sorted(Texts(file, statements, count=False).found | Texts(file, statements, count=True).found)
        compiler.compile(texts)
        groups.append({compiler.key(text): compiler.dump(text) for text in texts})
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(dump(groups))
    part.replace(path)


def main() -> int:
    """Write the file that the command line names."""
    path = Path(sys.argv[1])
    try:
        build(path)
    except MissingError as error:
        path.unlink(missing_ok=True)
        print(f"snippets: warning: no probe is compiled, so gpt-sass-probe will need a ptxas: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
