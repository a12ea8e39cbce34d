"""Lower the code of a probe at a place to a PTX function, which ptxas can compile on its own.

ptxas's calling convention fixes the registers of a function: the parameter is a structure of up to 48 bytes in R4 to
R15, and the result is returned in R4 and up. Before its RET, the function waits for everything that it has started. So
the body of a probe becomes

    .func (.param .b8 out[4]) body (.param .b8 in[12])      values that outlive it, then inputs

whose words do the work of the probe once their registers have been renamed. Values that probes share and keep from one
place to another (`kept`) come first, and all of them are returned, so that each is in the same register on entry and on
return. After them come the addresses of maps, and values of the site; these are only inputs.

A body computes everything that's needed at its place. Nothing is computed for it at the entry of the kernel.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.lower.fetch import CannotProbe, Fetcher
from gpt.probe.lower.registers import Names
from gpt.probe.lower.snippet import Lowering
from gpt.probe.model import Snippet
from gpt.probe.plan.function import PlacedSnippet
from gpt.probe.plan.maps import PlacedMap
from gpt.probe.plan.plan import Plan
from gpt.probe.sass.function import GUARD, ONCE, SIZE, UNITS
from gpt.ptx.types import SIZES

MOST = 48  # a function can have this many bytes of parameters in registers
FIRST = 4  # the first register for parameters
_INTEGER = re.compile(r"[+-]?(0x[0-9a-f]+|0b[01]+|[0-9]+)u?", re.ASCII | re.IGNORECASE)
AT_EXIT = "// at an exit of the kernel"
ADDS = "// adds constants: "
ADDEND = 0x5EED0000  # stands for the first constant that a body adds, ADDEND + 1 for the second one, and so on
_ADDITION = re.compile(rf"((?:@!?{GUARD} )?add\.[us](?:32|64) (%\w+), \2, )([1-9][0-9]{{0,8}});", re.ASCII)
_COMPUTED = {  # values of a site that have to be computed
    ONCE: f""".reg .pred {ONCE};
{{ .reg .b32 %mask, %below; activemask.b32 %mask; mov.u32 %below, %lanemask_lt;
and.b32 %mask, %mask, %below; setp.eq.u32 {ONCE}, %mask, 0; }}""",
    SIZE: f".reg .b32 {SIZE}; and.b32 {SIZE}, {UNITS}, 0xffff; shl.b32 {SIZE}, {SIZE}, 4;",  # in units of 16 bytes
}


@dataclass(frozen=True)
class Member:
    """A value that a body needs: its PTX register, its type, and its position in R4 and up.

    `kind` is kept, map or site; `name` says which one of these it is.
    """

    kind: str
    name: str
    register: str
    type: str
    at: int = 0

    @property
    def count(self) -> int:
        """The number of registers."""
        return 2 if SIZES.get(self.type, 0) == 8 else 1


@dataclass(frozen=True)
class Body:
    """The text of a function without its name, and the values that it needs. `returns` says whether it returns those
    that outlive it. If it only adds constants to some, these are the `addends`, and the text doesn't depend on them.
    """

    text: str
    members: tuple[Member, ...]
    returns: bool = True
    addends: tuple[int, ...] = ()

    @property
    def kept(self) -> list[Member]:
        """The values that outlive it."""
        return [member for member in self.members if member.kind == "kept"]


def lower(
    plan: Plan,
    names: list[Names],
    use: PlacedSnippet,
    constants: dict[str, str],
    *,
    is_final: bool = False,
    redux: bool = True,
) -> tuple[Body, set[str]]:
    """Return the body of a snippet, and which registers of its file outlive it.

    `constants` are registers with a value that's always the same when the snippet begins. If the snippet `is_final`, no
    other snippet of the file runs after it. Raises CannotProbe.
    """
    code = Emitter("t_", redux=redux, meets=True)
    members: dict[str, Member] = {}

    def take(kind: str, name: str, register: str, type_: str) -> str:
        members.setdefault(register, Member(kind, name, register, type_))
        return register

    maps = plan.maps[use.file]

    def base(placed: PlacedMap) -> str:  # its register doesn't depend on other probe files, as its parameter does
        return take("map", placed.param, f"%map_{list(maps).index(placed.map.name)}", "b64")

    types = use.face.types if use.face else {}

    def type_of(name: str) -> str | None:
        return types.get(name)

    used: set[str] = set()
    shared: set[str] = set()
    fetcher = Fetcher(code, Emitter("u_"), type_of, use)
    sampled = code.sampled(*use.probe.sample) if use.probe.sample else None
    first = code.take()
    own = names[use.file]
    lowering = Lowering(fetcher, sampled, own, maps, base, "$L", used, shared)
    before, lines = lowering.run()
    if before:
        raise CannotProbe("overwrites what the probe reads after it")
    kept = sorted(shared - constants.keys())
    body = [*first, *_join_reductions([line for line, _ in lines], code, use.snippet)]
    addends = tuple[int, ...]()
    if use.place.kind == "before":
        body, addends = _take_addends(body, {own.names[name] for name in kept})
    text = "\n".join(body)
    computed = [lines for name, lines in _COMPUTED.items() if _names(text, name)]
    text = "\n".join([*computed, text])
    for name, type_ in types.items():
        if name in _COMPUTED:
            continue
        if type_ and _names(text, name):
            take("site", name, name, type_)
    declared = [f".reg .{own.types[name]} {own.names[name]};" for name in sorted(used)]
    start = [_assign(own.types[name], own.names[name], constants[name]) for name in sorted(used & constants.keys())]
    for name in kept:
        take("kept", f"{use.file}:{name}", own.names[name], own.types[name])
    placed = _place(list(members.values()))
    declared += [f".reg .{m.type} {m.register};" for m in placed if m.kind != "kept"]
    returned = [] if is_final else [member for member in placed if member.kind == "kept"]
    body = [*declared, *code.declarations(), *_receive(placed), *start, text, *_return(returned), "ret;"]
    text = _function(placed, returned, body)
    if use.place.kind in ("exit", "leave"):
        text = f"{AT_EXIT}\n{text}"
    if addends:
        text = f"{ADDS}{len(addends)}\n{text}"
    return Body(text, tuple(placed), not is_final, addends), set(kept)


def _take_addends(lines: list[str], registers: set[str]) -> tuple[list[str], tuple[int, ...]]:
    """If these lines add a constant to each of these registers, and do nothing else, put ADDEND and so on in place of
    the constants. Return the lines and the constants.
    """
    found = [one for line in lines if (one := _ADDITION.fullmatch(line))]
    if not len(lines) == len(found) == len(registers) or {one[2] for one in found} != registers:
        return lines, ()
    return [f"{one[1]}{ADDEND + number};" for number, one in enumerate(found)], tuple(int(one[3]) for one in found)


def _join_reductions(lines: list[str], code: Emitter, snippet: Snippet) -> list[str]:
    """Put one branch around the reductions of each SAVE, if several SAVEs have some.

    ptxas never guards a reduction in memory; it jumps over it. If many guarded reductions follow each other, it jumps
    from one to the next that has the same guard. That leaves the BSSYs in between, for which it needs BREAK.
    """
    groups = [(guard, [*some]) for guard, some in itertools.groupby(lines, _guard_of_reduction)]
    if len(snippet.saves) < 2 or sum(bool(guard) for guard, _ in groups) < 2:
        return lines
    found: list[str] = []
    for number, (guard, some) in enumerate(groups):
        if not guard:
            found += some
            continue
        code.forget()  # the lines before may not have computed what it knows
        code.branch(f"$R_{number}", Condition(guard.lstrip("!"), not guard.startswith("!")))
        found += [*code.take(), *(line.partition(" ")[2] for line in some), f"$R_{number}:"]
    return found


def _guard_of_reduction(line: str) -> str:
    """Return the guard of a reduction in memory, without its `@`. Return an empty string for any other line."""
    guard, _, rest = line.partition(" ")
    return guard[1:] if guard.startswith("@") and rest.startswith("red.") else ""


def _names(text: str, name: str) -> bool:
    """Return whether the name of a register occurs in the text as a whole word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if end == len(text) or not (text[end].isalnum() or text[end] in "_$"):
            return True
        at = text.find(name, end)
    return False


def _assign(type_: str, register: str, value: str) -> str:
    """Return the statement that sets a register to a constant. That of a float may be an integer with its bits."""
    if type_ == "pred":
        return f"setp.ne.u32 {register}, {value}, 0;"
    is_float = type_ in ("f32", "f64") and not _INTEGER.fullmatch(value)
    return f"mov.{type_ if is_float else f'b{max(16, SIZES[type_] * 8)}'} {register}, {value};"


def _place(members: list[Member]) -> list[Member]:
    """Assign registers to values: first to values that are returned, and to pairs before single registers."""
    order = sorted(members, key=lambda one: (one.kind != "kept", -one.count, one.register))
    found: list[Member] = []
    at = 0
    for one in order:
        at += one.count == 2 and at & 1
        found.append(Member(one.kind, one.name, one.register, one.type, FIRST + at))
        at += one.count
    if 4 * at > MOST:
        raise CannotProbe(f"needs {4 * at} bytes of values, where a function takes {MOST}")
    return found


def _offset(member: Member) -> int:
    return 4 * (member.at - FIRST)


def _receive(members: list[Member]) -> list[str]:
    lines = []
    for one in members:
        place = f"[in+{_offset(one)}]"
        if one.type == "pred":
            lines.append(f"{{ .reg .b32 %v; ld.param.b32 %v, {place}; setp.ne.b32 {one.register}, %v, 0; }}")
        else:
            lines.append(f"ld.param.b{8 * SIZES[one.type]} {one.register}, {place};")
    return lines


def _return(members: list[Member]) -> list[str]:
    lines = []
    for one in members:
        place = f"[out+{_offset(one)}]"
        if one.type == "pred":
            lines.append(f"{{ .reg .b32 %v; selp.b32 %v, 1, 0, {one.register}; st.param.b32 {place}, %v; }}")
        elif SIZES[one.type] < 4:
            lines.append(f"{{ .reg .b32 %v; cvt.u32.u16 %v, {one.register}; st.param.b32 {place}, %v; }}")
        else:
            lines.append(f"st.param.b{8 * SIZES[one.type]} {place}, {one.register};")
    return lines


def _function(members: list[Member], returned: list[Member], lines: list[str]) -> str:
    def size(some: list[Member]) -> int:
        return max((4 * one.count + _offset(one) for one in some), default=0)

    given, result = size(members), size(returned)
    out = f"(.param .align 8 .b8 out[{result}]) " if result else ""
    into = f"(.param .align 8 .b8 in[{given}])" if given else "()"
    return f".visible .func {out}NAME{into} {{\n" + "\n".join(lines) + "\n}\n"


def make_initial(names: Names, file: int, name: str) -> Body:
    """Return the body that sets a kept register to its initial value, or to 0 if it has none."""
    type_, register, value = names.types[name], names.names[name], names.initial.get(name, "0")
    placed = _place([Member("kept", f"{file}:{name}", register, type_)])
    lines = [f".reg .{type_} {register};", _assign(type_, register, value), *_return(placed), "ret;"]
    return Body(_function(placed, placed, lines), tuple(placed))


def is_guarded(body: Body) -> bool:
    """Return whether the body needs the guard of the site."""
    return any(member.name == GUARD for member in body.members)
