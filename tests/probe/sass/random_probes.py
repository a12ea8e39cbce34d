"""Write random probes, whose records depend on everything that they compute.

    python -m tests.probe.sass.random_probes SEED      prints the probe of a seed

A probe has values of several types and predicates, computes with them at the entry, at stores and at the exits, jumps
forward and in short loops, and saves some of them under guards: to totals with sums, minima and maxima, to histograms
or to tables. The order in which threads run doesn't matter to any of that.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable

REGISTERS = {
    "u32": ["%a", "%b", "%c"],
    "u64": ["%w", "%x"],
    "u16": ["%h"],
    "pred": ["%p", "%q", "%r"],
    "f32": ["%f"],
    "f64": ["%d"],
}
NUMBERS = ("0", "1", "2", "3", "7", "13", "31", "255", "65535", "4294967295", "2654435761")
SPECIAL = ("LANEID", "WARPID", "%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x", "%lanemask_lt", "%lanemask_eq")
WORDS = {
    "special": SPECIAL,
    "compare": ("lt", "le", "gt", "ge", "eq", "ne"),
    "logic": ("and", "or", "xor"),
    "short": ("add.u32", "sub.u32", "mul.lo.u32", "mul.hi.u32", "xor.b32", "and.b32", "or.b32", "min.s32", "max.u32"),
    "long": ("add.u64", "sub.u64", "mul.lo.u64", "mul.hi.u64", "xor.b64", "min.u64", "max.s64"),
    "shift": ("shl.b32", "shr.u32", "shr.s32"),
    "bits": ("popc.b32", "clz.b32", "brev.b32", "bfind.u32", "abs.s32"),
}
BEGIN = {"u64": ("0", "1", "81985529216486895", "BLOCK"), "u16": ("0", "999"), "f32": ("0f40490FDB",)}
STATEMENTS = {  # <u32> is any register of that type, <n> a register or a number, and <short> one of WORDS
    "anywhere": """<short> <u32>, <u32>, <n>;
<short> <u32>, <u32>, <n>;
<short> <u32>, <u32>, <n>;
<long> <u64>, <u64>, <u64>;
<long> <u64>, <u64>, <u64>;
<shift> <u32>, <u32>, <count>;
<bits> <u32>, <u32>;
add.u32 <u32>, <u32>, <count>;
add.u64 <u64>, <u64>, <count>;
mad.lo.u32 <u32>, <u32>, <u32>, <u32>;
mad.wide.u32 <u64>, <u32>, <u32>, <u64>;
mul.wide.u32 <u64>, <u32>, <n>;
shl.b64 <u64>, <u64>, <count>;
shr.u64 <u64>, <u64>, <count>;
mov.u32 <u32>, <special>;
mov.b64 <u64>, {<u32>, <u32>};
popc.b64 <u32>, <u64>;
cvt.u64.u32 <u64>, <u32>;
cvt.u32.u64 <u32>, <u64>;
setp.<compare>.u32 <pred>, <u32>, <n>;
setp.<compare>.s32 <pred>, <u32>, <n>;
setp.<compare>.u64 <pred>, <u64>, <u64>;
setp.<compare>.<logic>.u32 <pred>, <u32>, <n>, <pred>;
setp.<compare>.u32 %p|%q, <u32>, <n>;
<logic>.pred <pred>, <pred>, <pred>;
not.pred <pred>, <pred>;
selp.b32 <u32>, <u32>, <n>, <pred>;
selp.b64 <u64>, <u64>, <u64>, <pred>;
add.u16 <u16>, <u16>, 77;
cvt.u32.u16 <u32>, <u16>;
cvt.u16.u32 <u16>, <u32>;
add.f32 <f32>, <f32>, 0f3F800000;
cvt.rn.f32.u32 <f32>, <u32>;
fma.rn.f32 <f32>, <f32>, 0f3F000000, <f32>;
add.f64 <f64>, <f64>, 0d3FF8000000000000;
cvt.rn.f64.u32 <f64>, <u32>;""".splitlines(),
    "at a store": """mov.u32 <u32>, BYTES;
selp.b32 <u32>, 1, 2, PRED;
add.u32 <u32>, <u32>, BYTES;
add.u64 <u64>, <u64>, BYTES;""".splitlines(),
}
FOLD = """.reg .u32 %fold;
cvt.rzi.u32.f32 %fold, %f;
xor.b32 %a, %a, %fold;
cvt.rzi.u32.f64 %fold, %d;
add.u32 %b, %b, %fold;
cvt.u32.u16 %fold, %h;
add.u32 %c, %c, %fold;"""
FIELDS = (("sum", "u64"), ("few", "u32"), ("far", "u64"), ("low", "s32"))
HISTOGRAMS = ('data = {value = "u32"}\nlow = 0\nhigh = 300\nstep = 10', 'data = {value = "u32"}')


class Writer:
    """Writes one probe."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.labels = 0

    def write(self) -> str:
        """Return the text of the probe file."""
        pick = self.random.choice
        level = pick(("thread", "thread", "thread", "block", "warp"))
        kind = pick(("total", "total", "total", "histogram", "table")) if level == "thread" else "total"
        save = {"total": self._total, "histogram": self._histogram, "table": self._table}[kind]
        head, make_save = save(level)
        sample = pick(('sample = "block/2"\n', 'sample = "warp/3"\n')) if self.random.random() < 0.2 else ""
        registers = "\n".join(f".reg .{type_} {', '.join(names)};" for type_, names in REGISTERS.items())
        begin = [self._begin(type_, name) for type_, names in REGISTERS.items() for name in names]
        middle, end = self._code(1, 8, "at a store"), [*self._code(0, 8), FOLD]
        where = pick(("exit", "all", "all", "store"))
        if where == "store":
            middle = [*begin, *middle, make_save(), *self._code(0, 4, "at a store")]
        for _ in range(pick((1, 1, 2, 3))):
            end += [make_save(), *self._code(0, 3)]
        parts: list[tuple[str, str, list[str]]] = []
        if where == "all":
            parts += [("kernel", "before", [*begin, *self._code(0, 6)])]
            parts += [("st.global", pick(("before", "after")), middle), ("kernel", "after", end)]
        elif where == "exit":
            parts += [("kernel", "after", [*begin, *end])]
        else:
            parts += [("st.global", "before", middle)]
        parts[0][2].insert(0, f"{registers}\n.reg .u32 %turn;\n.reg .pred %again;")
        probes = [
            f"[probe.part{number}]\nposition = \"{position}\"\nlevel = \"{level}\"\n{sample}{when} = '''"
            + "\n".join(lines) + "'''\n"
            for number, (position, when, lines) in enumerate(parts)
        ]  # fmt: skip
        return f'[map.m]\nlevel = "{level}"\n{head}\n\n' + "\n".join(probes)

    def _begin(self, type_: str, name: str) -> str:
        pick = self.random.choice
        if type_ == "pred":
            return f"setp.{pick(('lt', 'gt', 'eq'))}.u32 {name}, {pick(REGISTERS['u32'])}, {pick(NUMBERS)};"
        if type_ == "u32":
            return f"mov.u32 {name}, {pick(SPECIAL if self.random.random() < 0.6 else NUMBERS)};"
        return f"mov.{type_} {name}, {pick(BEGIN.get(type_, ('0d3FF0000000000000',)))};"

    # Statements

    def _statement(self, *more: str) -> str:
        kind = self.random.choice(more) if more and self.random.random() < 0.2 else "anywhere"
        template = self.random.choice(STATEMENTS[kind])
        return re.sub("<([a-z0-9]+)>", lambda found: self._value(found[1]), template)

    def _value(self, name: str) -> str:
        if name == "n":
            return self.random.choice(REGISTERS["u32"] if self.random.random() < 0.7 else NUMBERS)
        if name == "count":
            return str(self.random.randrange(1, 32))
        return self.random.choice(WORDS.get(name) or REGISTERS[name])

    def _code(self, least: int, most: int, *more: str) -> list[str]:
        """Return statements, some of them under guards, jumped over, or in loops."""
        found: list[str] = []
        for _ in range(self.random.randrange(least, most)):
            chance = self.random.random()
            if chance < 0.06:
                found += [f"{self._guard()}bra {(label := self._label())};", *self._some(more), f"{label}:"]
            elif chance < 0.08:
                label, turns = self._label(), self.random.randrange(2, 5)
                found += ["mov.u32 %turn, 0;", f"{label}:", *self._some(more), "add.u32 %turn, %turn, 1;"]
                found += [f"setp.lt.u32 %again, %turn, {turns};", f"@%again bra {label};"]
            else:
                found.append((self._guard() if chance > 0.7 else "") + self._statement(*more))
        return found

    def _some(self, more: tuple[str, ...]) -> list[str]:
        return [self._statement(*more) for _ in range(self.random.randrange(1, 4))]

    def _guard(self) -> str:
        return f"@{self.random.choice(('', '!'))}{self.random.choice(REGISTERS['pred'])} "

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    # Maps: the part of the file, and what returns a SAVE

    def _total(self, level: str) -> tuple[str, Callable[[], str]]:
        fields = FIELDS[: self.random.randrange(1, 5)]
        counts = "counts = false\n" if self.random.random() < 0.4 else ""
        best = f'{self.random.choice(("min", "max"))} = ["{self.random.choice(fields)[0]}"]\n'
        best = best if self.random.random() < 0.5 else ""
        data = ", ".join(f'{name} = "{type_}"' for name, type_ in fields)

        def save() -> str:
            values = [self.random.choice(REGISTERS["u64" if type_ == "u64" else "u32"]) for _, type_ in fields]
            values = [values[0], *(one if self.random.random() < 0.85 else "_" for one in values[1:])]
            return f"{self._guard()}SAVE [m] {{{', '.join(values)}}};"

        return f'type = "total"\n{counts}{best}data = {{{data}}}', save

    def _histogram(self, level: str) -> tuple[str, Callable[[], str]]:
        def save() -> str:
            return f"{self._guard()}SAVE [m] {{{self.random.choice(REGISTERS['u32'])}}};"

        return f'type = "histogram"\n{self.random.choice(HISTOGRAMS)}', save

    def _table(self, level: str) -> tuple[str, Callable[[], str]]:
        def save() -> str:
            key, value = self.random.choice(REGISTERS["u32"]), self.random.choice(REGISTERS["u64"])
            return f"and.b32 %turn, {key}, 15;\n{self._guard()}SAVE [m] {{%turn, {value}}};"

        return 'type = "table"\nkey = ["key"]\ncap = 64\ndata = {key = "u32", sum = "u64"}', save


if __name__ == "__main__":
    print(Writer(int(sys.argv[1])).write())
