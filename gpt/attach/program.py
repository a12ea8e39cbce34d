"""Generate the bpftrace program that watches functions of the driver, from gpt-hook's table of them.

A uprobe stores a call's start and arguments in a map, by process, thread and function; the uretprobe prints them in a
line with the result, so that each line is a complete call, whichever CPU's buffer it comes from. Calls that are still
in a map haven't returned: they're printed with each `beat`, and by bpftrace itself when it ends. The lines are

    begin NSECS SECONDS.MICROSECONDS TAG time stamps, the time of day at the same moment, and the tag of this program
    machine HOST BOOT_ID SUSPENDED       ns by which time stamps are ahead of CLOCK_MONOTONIC
    argv PID HEX                         how the process was started, the contents of /proc/PID/cmdline
    functions N SYMBOL WORDS , ...       keys of the maps: a word for each value, with * if that is an address
    call PID TID START NS RESULT SYMBOL FIELD=HEX ...
    name PID TID START PART TEXT TAG     the name that a call looks up, in parts of PART_BYTES
    kernel PID TID START NS RESULT NAME FIELD=HEX ...
    beat NSECS
    exit PID NSECS
    end NSECS

and the maps: `call` as the name, then a tuple of the start and the words, where words with * aren't known yet.

Each line but `begin` has TAG, random hex digits, after the first word, and so have the names of maps: a kernel may be
called "x\ncall 1 1 ...", and bpftrace prints that as it is, unless it writes JSON. TAG also ends a name, because
bpftrace's own lines, such as "Lost 5 events", have none.

No text from outside gets into the program. Files are named by descriptor or by address (gpt.attach.driver), names of
functions come from our own table, and everything is checked here for harmless characters before it's inserted.

The program must run in bpftrace 0.17 (2023), which has no ternary operator on user values, and can't read stack
arguments after the third.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpt.attach.driver import WORD, DriverFunction
from gpt.base.errors import UsageError

PART_BYTES, PARTS = 63, 16  # a name is read in parts: bpftrace keeps strings on BPF's 512-byte stack
BEAT_MS = 500
MAX_COMMAND = 1000  # bytes of a command line
PLACE = re.compile(r"[\w./+-]+", re.ASCII)  # a colon would end the path of a file
NAMED = {"cuModuleGetFunction": 2, "cuLibraryGetKernel": 2}  # the argument with the name to look up
ALIASES = {"cuKernelGetFunction": 1}  # the argument with the kernel that gets another handle

U32 = "*(uint32 *)({} + {})"
U64 = "*(uint64 *)({} + {})"


class Stored(NamedTuple):
    """A value of a call: its field, the expression that the uprobe stores, and the expression to print, in which `{}`
    stands for the stored value.
    """

    field: str
    kept: str
    shown: str = "{}"


class FunctionProbes(NamedTuple):
    """The values that a function's two probes store and print; `first` are statements that run before that."""

    values: list[Stored]
    first: str = ""
    more: str = ""  # constant fields at the end of the line


def argument(number: int) -> str:
    """Return bpftrace's name for an argument of a C function."""
    return f"arg{number}" if number < 6 else f"sarg{number - 6}"


def _value(field: str, where: str) -> Stored:
    if where.startswith("*"):
        return Stored(field, argument(int(where[1:])), "*(uint64 *){}")
    return Stored(field, argument(int(where)))


def _dims(*arguments: str) -> list[Stored]:
    names = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")
    return [Stored(name, value) for name, value in zip(names, arguments, strict=False)]


def _low(number: int) -> str:
    return f"{argument(number)} & 0xffffffff"  # an int: the upper half of its register is undefined


LAUNCH = [Stored("function", "arg0"), *_dims(*map(_low, range(1, 8))), Stored("stream", argument(8))]
LAUNCH_EX = [
    Stored("function", "arg1"),
    *_dims(*(U32.format("arg0", at) for at in range(0, 28, 4))),
    Stored("stream", U64.format("arg0", 32)),
]


def _copied(to: int, source: int, sizes: Iterable[int]) -> FunctionProbes:
    """Return the values for CUDA_MEMCPY2D and 3D: each end has its memory type, the host address, the GPU address."""
    first = ""
    for name, at in (("to", to), ("from", source)):
        first += f"${name} = {U64.format('arg0', at + 16)}; "
        first += f"if ({U32.format('arg0', at)} == 1) {{ ${name} = {U64.format('arg0', at + 8)}; }} "
    size = " * ".join(U64.format("arg0", at) for at in sizes)
    return FunctionProbes([Stored("to", "$to"), Stored("from", "$from"), Stored("bytes", size)], first)


def watch(function: DriverFunction) -> FunctionProbes:
    """Return the values to print for a function's calls."""
    values = [_value(field, where) for field, where in function.values.items()]
    match (function.how or "").rpartition("_"):
        case ("", "", "launch"):
            return FunctionProbes(LAUNCH)
        case ("launch", _, "cooperative"):
            return FunctionProbes(LAUNCH, more=" cooperative=1")
        case ("launch", _, "ex"):
            return FunctionProbes(LAUNCH_EX)
        case ("launch", _, "old"):
            grid = [_low(number) for number in (1, 2)] if "Grid" in function.name else ["1", "1"]
            stream = [Stored("stream", "arg3")] if "Async" in function.name else []
            return FunctionProbes([Stored("function", "arg0"), *_dims(*grid, "1"), *stream])
        case ("", "", "pitch"):
            pitch = Stored("bytes", "arg1", "*(uint64 *){}")
            return FunctionProbes([*values, pitch, Stored("rows", "arg3")])
        case ("copy", _, "2d"):
            return FunctionProbes([*values, *(copied := _copied(72, 16, (112, 120))).values], copied.first)
        case ("copy", _, "3d"):
            return FunctionProbes([*values, *(copied := _copied(120, 32, (176, 184, 192))).values], copied.first)
        case ("times", _, size):
            return FunctionProbes([v._replace(kept=f"{v.kept} * {size}") if v.field == "bytes" else v for v in values])
        case ("area", _, size):
            return FunctionProbes([*values, Stored("bytes", f"arg3 * arg4 * {size}")])
        case _:
            more = [Stored("kernel", argument(ALIASES[function.name]))] if function.name in ALIASES else []
            return FunctionProbes([*values, *more])


def _quote(path: str) -> str:
    """Return a path in quotes, as bpftrace takes it. Raises UsageError if any character might have to be escaped."""
    if not PLACE.fullmatch(path):
        raise UsageError("a program cannot name it: copy or link it to a path of letters, digits and . _ + - /", path)
    return f'"{path}"'


def _word(text: str) -> str:
    """Return a word unchanged if it's safe to write into a program. Raises ValueError otherwise."""
    if not WORD.fullmatch(text):
        raise ValueError(f"{text!r} in a program")
    return text


def of_process(pid: int | None) -> str:
    """Return a predicate for one process, because other watched processes may run the same code."""
    return f"/pid == {pid}/ " if pid else ""


def probe(path: str, number: int, function: DriverFunction, tag: str, pid: int | None = None) -> str:
    """Write the two probes of a function, for one process or for all."""
    watched = watch(function)
    symbol = _word(function.symbol)
    values = watched.values
    kept = [f"(uint64){_group(value.kept)}" for value in values]  # some are signed: tuples in a map have one type
    name = NAMED.get(function.name)
    if name is not None:
        kept.append(f"(uint64){argument(name)}")
    map_ = f"@call{_size(function)}_{tag}[pid, tid, {number}]"
    fields = "".join(f" {value.field}=%llx" for value in values) + watched.more
    shown = "".join(f", {value.shown.format(f'$c.{at}')}" for at, value in enumerate(values, 1))
    place = f"{_quote(path)}:{symbol}"
    lines = [
        f"uprobe:{place} {of_process(pid)}{{ {watched.first}{map_} = (nsecs, {', '.join(kept) or '(uint64)0'}); }}",
        f"uretprobe:{place} /{map_}.0/ {{",
        f"  $c = {map_}; delete({map_});",
    ]
    if name is not None:
        lines.append("  if (retval == 0) {")
        for part in range(PARTS):
            text = f"str($c.{len(kept)} + {part * PART_BYTES}, {PART_BYTES + 1})"
            lines.append(f'    printf("name {tag} %d %d %llu {part} %s {tag}\\n", pid, tid, $c.0, {text});')
        lines.append("  }")
    lines += [
        f'  printf("call {tag} %d %d %llu %llu %lld {symbol}{fields}\\n",',
        f"         pid, tid, $c.0, nsecs - $c.0, retval{shown});",
        "}",
    ]
    return "\n".join(lines)


def _size(function: DriverFunction) -> int:
    """Return how many values are stored per call: calls with equally many share a map, whose tuples have one type."""
    return max(len(watch(function).values) + (function.name in NAMED), 1)


def _group(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def _words(function: DriverFunction) -> str:
    """List the values that a map stores per call."""
    values = watch(function).values
    return " ".join(value.field + "*" * ("*" in value.shown) for value in values)


class Machine(NamedTuple):
    """The machine and its clocks: `suspended` are the ns that CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC."""

    host: str
    boot_id: str
    suspended: int
    commands: dict[int, bytes]  # /proc/PID/cmdline of the watched processes


def generate(
    functions: list[tuple[str, DriverFunction]],
    machine: Machine,
    kernel: list[str],
    about: list[str],
    exits: bool,
    tag: str,
    pid: int | None = None,
) -> str:
    """Return the program. `functions` are given with their files; `kernel` has additional probes, and `about` the lines
    of a comment.

    With `pid`, only calls of that process are printed; it counts in the machine's first pid namespace. `exits` says
    that the kernel's tracepoints are available, to report when processes end. `tag` is the TAG of each line. Raises
    UsageError for a file that can't be named safely.
    """
    listed = ", ".join(
        f"{number} {function.symbol} {_words(function)}" for number, (_, function) in enumerate(functions)
    )
    host, boot_id = (re.sub(r"[^\w.-]", "_", text, flags=re.ASCII) or "_" for text in (machine.host, machine.boot_id))
    lines = [
        *(f"// {line}" for line in about),
        "",
        "BEGIN {",
        f'  printf("begin %llu %s {tag}\\n", nsecs, strftime("%s.%f", nsecs));',
        f'  printf("machine {tag} {host} {boot_id} {machine.suspended}\\n");',
        *(f'  printf("argv {tag} {pid} {words[:MAX_COMMAND].hex()}\\n");' for pid, words in machine.commands.items()),
        f'  printf("functions {tag} {listed}\\n");',
        "}",
        "",
        f"interval:ms:{BEAT_MS} {{",
        *(f"  print(@call{size}_{tag});" for size in sorted({_size(one) for _, one in functions})),
        f'  printf("beat {tag} %llu\\n", nsecs);',
        "}",
        f'END {{ printf("end {tag} %llu\\n", nsecs); }}',
        "",
    ]
    if exits:
        lines += [
            "tracepoint:sched:sched_process_exit /pid == tid/ {",
            f'  printf("exit {tag} %d %llu\\n", pid, nsecs);',
            "}",
            "",
        ]
    lines += [probe(path, number, function, tag, pid) for number, (path, function) in enumerate(functions)]
    return "\n".join([*lines, *kernel, ""])
