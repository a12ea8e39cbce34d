"""Random programs: deterministic scripts for random_program.c, and the launches in them.

Each buffer is used in one stream only, and variables that kernels read are written while nothing runs, so the order in
which streams work makes no difference.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field, replace

# Bytes of global memory that each thread with an item reads and writes. Kernels that aren't listed depend on their
# items.
BYTES = {
    "nothing": (4, 4), "scale": (4, 4), "mix": (4, 4), "words_4080": (4, 4), "words_4000": (4, 4), "shape": (4, 4),
    "words_32000": (4, 4), "words_32748": (4, 4), "turn": (4, 4), "large": (4, 4), "call": None, "local": (4, 4),
    "variables": (16, 8), "meet": None, "say": (4, 4), "early": None,
}  # fmt: skip
VARIABLES = ["total", "table", "factor", "untouched", "shared_with_host", "functions"]
PARAMS, PACKED, EX, EX_PACKED, COOPERATIVE, EX_COOPERATIVE, EX_MANY, PER_THREAD, BOTH, NEITHER, SHORT = range(11)
GOOD = (PARAMS, PACKED, EX, EX_PACKED, EX_MANY, PARAMS, EX)
COUNT, MOST = 4096, 64


@dataclass(frozen=True)
class Launch:
    """A launch, in the order of the script's lines, and the bytes that it reads and writes, if known."""

    line: int
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    moved: tuple[int, int] | None
    captured: bool = False  # it is in a graph
    replayed: int | None = None  # for a replay: the line that captured it


@dataclass
class Module:
    number: int
    library: bool
    functions: dict[int, str] = field(default_factory=dict)


@dataclass
class Context:
    """The objects in a context. Buffers belong to streams."""

    number: int
    primary: bool
    modules: list[Module] = field(default_factory=list)
    streams: dict[int, list[int]] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)


class Program:
    """Make a script of this many steps."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.launches: list[Launch] = []
        self.free = {kind: list(range(MOST)) for kind in ("context", "module", "function", "stream", "buffer", "event")}
        self.contexts: list[Context] = []
        self.default: set[int] = set()  # streams that each context has
        self.new_context(True)
        for step in self.random.choices(list(STEPS), STEPS.values(), k=steps):
            step(self)
        self.end()

    # The script

    def say(self, *words: object) -> int:
        self.lines.append(" ".join(map(str, words)))
        return len(self.lines)

    @property
    def script(self) -> str:
        return "\n".join(self.lines) + "\n"

    def take(self, kind: str) -> int:
        return self.free[kind].pop(0)

    def pick(self, things):
        return self.random.choice(list(things))

    # Contexts

    def new_context(self, primary: bool = False) -> None:
        self.here = Context(self.take("context"), primary)
        self.contexts.append(self.here)
        self.say("context", self.here.number, int(primary))
        for value in self.random.sample((0, 1, 2), 2):
            self.add_stream("named", value)
        self.add_module()

    def make_context(self) -> None:
        if len(self.contexts) < 4:
            self.new_context()

    def change_context(self) -> None:
        self.here = self.pick(self.contexts)
        self.say("use", self.here.number)

    def end_context(self) -> None:
        """End the context with work in flight."""
        if self.here.primary or self.random.random() < 0.5:
            return
        self.contexts.remove(self.here)
        for module in self.here.modules:
            if module.library:  # a library outlives the context
                self.say("unload", module.number, 1)
        self.say("destroy", self.here.number)
        self.here = self.contexts[0]
        self.say("use", self.here.number)

    # Modules

    def add_module(self) -> None:
        module = Module(self.take("module"), self.random.random() < 0.5)
        self.here.modules.append(module)
        self.say("load", module.number, int(module.library))
        for _ in range(self.random.randrange(1, 5)):
            self.add_function(module)

    def make_module(self) -> None:
        if self.free["module"]:
            self.add_module()

    def add_function(self, module: Module | None = None) -> None:
        module = module or self.pick(self.here.modules)
        if not self.free["function"]:
            return
        number, name = self.take("function"), self.pick(BYTES)
        how = self.pick(["kernel", "kernelof", "inside"]) if module.library else "function"
        if how == "kernelof":
            self.say("kernelof", number, module.number, name)
        else:
            self.say("function", number, module.number, how, name)
        module.functions[number] = name

    def unload(self) -> None:
        """Unload a module while its kernels and others run."""
        if len(self.here.modules) < 2:
            return
        module = self.pick(self.here.modules)
        self.here.modules.remove(module)
        if module.library:
            self.say("sync")
        self.say("unload", module.number, int(module.library))
        for number in module.functions:
            self.free["function"].append(number)
        self.free["module"].append(module.number)

    def how_to_find(self, module: Module, name: str) -> str:
        if not module.library:
            return "module"
        return "managed" if name == "shared_with_host" else self.pick(["library", "inside"])

    def write(self) -> None:
        """Write a variable, between two launches in one stream or while nothing runs."""
        module, name = self.pick(self.here.modules), self.pick(VARIABLES[:-1])
        stream = self.pick([-1, *self.here.streams])
        self.say("sync")
        if stream >= 0:
            self.go(stream)
        self.say("set", module.number, self.how_to_find(module, name), name, self.random.randrange(100),
                 self.pick([0, -1]), stream)  # fmt: skip
        if stream >= 0:
            self.go(stream, module)
            self.go(stream, module)
        self.say("sync")

    def read(self) -> None:
        module, name = self.pick(self.here.modules), self.pick(VARIABLES)
        self.say("sync")
        self.say("get", module.number, self.how_to_find(module, name), name)

    # Streams

    def add_stream(self, *how: object) -> None:
        number = self.take("stream")
        self.here.streams[number] = []
        if how:
            self.default.add(number)
        self.say(how[0] if how else "stream", number, *(how[1:] or (self.pick([0, 1]), self.pick([-5, -1, 0]))))
        for _ in range(2):
            buffer = self.take("buffer")
            self.say("buffer", buffer)
            self.here.streams[number].append(buffer)

    def make_stream(self) -> None:
        if len(self.here.streams) < 6 and self.free["stream"]:
            self.add_stream()

    def wait(self) -> None:
        self.say("wait", self.pick(self.here.streams))

    def ask_stream(self) -> None:
        self.say("query", self.pick(self.here.streams))

    def sync(self) -> None:
        self.say("sync")
        self.say("called")

    def host(self) -> None:
        self.say("host", self.pick(self.here.streams), self.random.randrange(9))
        self.say("sync")
        self.say("called")

    def capture(self) -> None:
        """Capture kernels in a graph, and launch it several times."""
        stream = self.pick([number for number in self.here.streams if number not in self.default] or [None])
        if stream is None:
            return
        self.say("sync")
        self.say("capture", stream)
        captured = [self.go(stream) for _ in range(self.random.randrange(1, 5))]
        self.launches[-len(captured) :] = [replace(launch, captured=True) for launch in captured]
        self.say("captured", stream, 0)
        for _ in range(self.random.randrange(3)):
            line = self.say("replay", 0, stream)
            self.launches += [replace(launch, line=line, replayed=launch.line) for launch in captured]
            self.go(stream)
        self.say("sync")
        self.say("endgraph", 0)

    def hold(self) -> None:
        """Make a stream wait for the host, which continues with other streams."""
        stream = self.pick([number for number in self.here.streams if number not in self.default] or [None])
        if stream is None:
            return
        self.say("hold", stream)
        for _ in range(self.random.randrange(6)):
            self.go(stream)
        self.describe()
        for _ in range(self.random.randrange(6)):
            self.go(stream)
        self.say("letgo")
        self.say("sync")
        self.say("holdagain")

    def order(self) -> None:
        """Let a stream wait for another one."""
        if not self.here.events and self.free["event"]:
            self.here.events.append(self.take("event"))
            self.say("event", self.here.events[0], self.pick([0, 2]))
        self.say("record", self.here.events[0], self.pick(self.here.streams))
        self.go()
        self.say("await", self.here.events[0], self.pick(self.here.streams))

    # Launches

    def dimensions(self, name: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        some = self.random.randrange
        if name == "shape":
            return (some(1, 4), some(1, 4), some(1, 4)), (some(1, 9), some(1, 9), some(1, 6))
        if name == "large":
            return (some(1, 4), 1, 1), (some(1, 200), 1, 1)
        return (some(1, 9), 1, 1), (self.pick([1, 31, 32, 33, 64, 100, 256, 1024, some(1, 1025)]), 1, 1)

    def go(self, stream: int | None = None, module: Module | None = None) -> Launch:
        module = module or self.pick(self.here.modules)
        stream = self.pick(self.here.streams) if stream is None else stream
        number = self.pick(module.functions)
        name = module.functions[number]
        grid, block = self.dimensions(name)
        form = self.pick((COOPERATIVE, EX_COOPERATIVE)) if name == "meet" else self.pick(GOOD)
        if name == "nothing" and form == PER_THREAD:
            form = PARAMS
        shared = 4 * block[0] if name == "turn" else self.pick([0, 0, 16])
        count = self.pick([0, 1, 100, self.random.randrange(COUNT + 1), COUNT])
        threads = grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2]
        active = threads if name == "nothing" else min(count, threads)
        line = self.say("go", number, form, stream, *grid, *block, shared, self.pick(self.here.streams[stream]), count,
                        self.random.randrange(30))  # fmt: skip
        each = BYTES[name]
        launch = Launch(line, name, grid, block, each and (each[0] * active, each[1] * active))
        self.launches.append(launch)
        return launch

    def go_often(self) -> None:
        for _ in range(self.random.randrange(1, 12)):
            self.go()

    def refuse(self) -> None:
        """Make a launch that the driver rejects."""
        module = self.pick(self.here.modules)
        stream, number = self.pick(self.here.streams), self.pick(module.functions)
        buffer = self.here.streams[stream][0]
        some = [
            (PARAMS, stream, 0, 1, 1, 32, 1, 1, 0), (PARAMS, stream, 1, 1, 1, 1025, 1, 1, 0),
            (EX, stream, 1, 70000, 1, 32, 1, 1, 0), (PACKED, stream, 1, 1, 1, 32, 1, 1, 1 << 20),
            (EX_PACKED, stream, 1, 1, 1, 1, 1, 65, 0), (COOPERATIVE, stream, 1 << 20, 1, 1, 32, 1, 1, 0),
            (EX_COOPERATIVE, stream, 1, 1, 1 << 16, 32, 1, 1, 0), (PARAMS, stream, 1 << 31, 1, 1, 32, 1, 1, 0),
        ]  # fmt: skip
        if module.functions[number] != "nothing":
            some += [(form, stream, 1, 1, 1, 32, 1, 1, 0) for form in (NEITHER, SHORT)]
        form, *rest = self.pick(some)
        self.say("go", number, form, *rest, buffer, 0, 0)

    def show(self) -> None:
        self.say("sync")
        self.say("show", self.pick(self.pick(self.here.streams.values())))

    # Questions and attributes

    def ask(self) -> None:
        module = self.pick(self.here.modules)
        threads, shared = self.pick([0, 1, 32, 100, 1024, 1025]), self.pick([0, 1000, 60000])
        self.say("ask", self.pick(module.functions), threads, shared, self.random.randrange(8))

    def describe(self) -> None:
        self.say("describe", self.pick(self.pick(self.here.modules).functions))

    def attribute(self) -> None:
        """Query attributes of functions and kernels, valid and invalid ones."""
        module = self.pick(self.here.modules)
        function = self.pick(module.functions)
        values = {8: [60000, 100, 0, 200000, -1], 9: [50, 101, -1], 10: [1], 0: [5], 99: [1]}
        which = self.pick(values)
        value = self.pick(values[which])
        how = self.pick(["function", "cache", "shared", *(["kernel", "kernelcache"] if module.library else [])])
        if how in ("function", "kernel"):
            self.say("attribute", how, function, which, value, self.pick([0, 0, 0, 1]))
        else:
            self.say("attribute", how, function, self.pick([0, 1, 2, 3]), 0, 0)

    def end(self) -> None:
        for context in self.contexts:
            self.say("use", context.number)
            self.say("sync")
            for buffers in context.streams.values():
                for buffer in buffers:
                    self.say("show", buffer)
            for module in context.modules:
                for name in VARIABLES:
                    self.say("get", module.number, self.how_to_find(module, name), name)


# Steps, with how often they come.
STEPS = {
    Program.make_context: 1,
    Program.change_context: 2,
    Program.end_context: 1,
    Program.make_module: 2,
    Program.add_function: 3,
    Program.unload: 2,
    Program.write: 3,
    Program.read: 3,
    Program.make_stream: 2,
    Program.wait: 1,
    Program.ask_stream: 1,
    Program.sync: 2,
    Program.host: 1,
    Program.order: 2,
    Program.capture: 2,
    Program.hold: 1,
    Program.go_often: 9,
    Program.refuse: 2,
    Program.show: 2,
    Program.ask: 3,
    Program.describe: 2,
    Program.attribute: 3,
}

if __name__ == "__main__":
    print(Program(int(sys.argv[1])).script, end="")
