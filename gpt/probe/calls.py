"""How the state goes down the calls: which functions need it, and the parameter more that they get.

The functions on the way from a kernel to a probe in a device function get a parameter more, as do their prototypes
and calls. Around such a call, and at the ends of such a function, the registers go to the state's memory and come
back. A function whose address is taken may be called by who knows whom: a kernel with a probe in one is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpt.errors import GptError
from gpt.probe.insert import CALL_IN, CALL_OUT, DECLARE, STATE_IN, STATE_OUT, Insertions
from gpt.probe.params import room
from gpt.probe.state import State
from gpt.probe.survey import Function
from gpt.ptx import tree
from gpt.ptx.parse import parse_head
from gpt.ptx.quick import parse_instruction
from gpt.ptx.scan import Module, Statement


class LeftAlone(GptError):
    """A kernel that no probe goes into, and why."""


def propagate(module: Module, functions: Sequence[Function], entry: Function) -> None:
    """Finds the functions that need the state: those with probes, and those that call such. Raises LeftAlone."""
    waiting = [f for f in functions if f.uses and f is not entry]
    if not waiting:
        return
    calls = {f.item.name: called(module, f.statements) for f in functions}
    while waiting:
        function = waiting.pop()
        if not function.stateful:
            function.stateful = True
            waiting += [f for f in functions if function.item.name in calls[f.item.name]]
    for function in functions:
        if function.stateful and function is not entry and (reason := _find_obstacle(module, function, entry)):
            raise LeftAlone(f"probes in function '{function.item.name}', {reason}", entry.item.name)


def _find_obstacle(module: Module, function: Function, entry: Function) -> str | None:
    """Why no parameter can be added: the function could be called in another way than by its name."""
    name = function.item.name
    word = re.compile(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])")
    named = sum(1 for _ in word.finditer(module.skeleton))
    own = sum(1 for item in module.items if item.kind == "func" and item.name == name)
    direct = sum(1 for _ in _iter_callers(module, name))
    if named != own + direct:
        return "whose address is taken"
    if any(name in called(module, module.statements(e)) for e in module.entries if e is not entry.item):
        return "which another kernel calls"
    if any(s.word == ".reg" for p in parse_head(module, function.item).params or () for s in p.specifiers):
        return "whose parameters are registers"
    return None


def called(module: Module, statements: Sequence[Statement]) -> set[str]:
    """The functions that these statements call by name."""
    found = set()
    for statement in statements:
        if statement.kind == "instruction" and statement.head.partition(".")[0] == "call":
            node = parse_instruction(module.source(statement), module.name)
            name = next((o.name for o in node.operands if isinstance(o, tree.Name)), "")
            if not name.startswith("%"):
                found.add(name)
    return found


def _iter_callers(module: Module, name: str) -> Iterator[Statement]:
    """The statements of a module that call a function by its name."""
    for function in module.functions:
        if module.skeleton.find(name, function.body, function.end) >= 0:
            for statement in module.statements(function):
                if name in called(module, [statement]):
                    yield statement


def pass_state(module: Module, functions: Sequence[Function], entry: Function, state: State, to: Insertions) -> None:
    """Adds the parameter to functions, prototypes and calls, and moves the registers."""
    stateful = {function.item.name for function in functions if function.stateful}
    for item in module.items:
        if item.kind == "func" and item.name in stateful:
            at, before, behind = room(module, item)
            to.add(at, DECLARE, [f"{before}.param .b64 {state.prefix}in{behind}"])
    for function in functions:
        if function.stateful:
            _pass_on(module, function, function is entry, stateful, state, to)


def _pass_on(
    module: Module, function: Function, is_entry: bool, stateful: set[str], state: State, to: Insertions
) -> None:
    used, code, body = function.shared, function.code, function.item.body + 1
    for number, statement in enumerate(function.statements):
        if statement.kind != "instruction":
            continue
        opcode = statement.head.partition(".")[0]
        if opcode == "call" and (callee := called(module, [statement]) & stateful):
            at, before, behind = _find_argument(module, statement, next(iter(callee)))
            to.add(at, CALL_IN, [f"{before}%{state.prefix}state{behind}"])
            to.add(in_front(function.statements, number), STATE_OUT, state.store(used, code))
            to.add(statement.end, CALL_OUT, state.load(used, code))
        elif opcode == "ret" and not is_entry:
            to.add(in_front(function.statements, number), CALL_IN, state.store(used, code))
    if is_entry:
        to.add(body, STATE_IN, state.begin(code))
        return
    to.add(function.item.end - 1, CALL_IN, state.store(used, code))
    to.add(body, STATE_IN, state.enter(used, code))


def _find_argument(module: Module, statement: Statement, name: str) -> tuple[int, str, str]:
    """Where one more argument of a call goes: the offset, and what stands before and behind it."""
    text = module.skeleton
    found = re.compile(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])").search(text, statement.start, statement.end)
    assert found
    at = text.find("(", found.end(), statement.end)
    if at < 0:
        return found.end(), ", (", ")"
    end = text.index(")", at)
    return end, ", " if text[at + 1 : end].strip() else "", ""


def in_front(statements: Sequence[Statement], number: int) -> int:
    """The offset in front of a statement, and of pragmas that speak of it."""
    at = statements[number].start
    for statement in reversed(statements[:number]):
        if statement.kind != "directive" or statement.head not in (".pragma", ".loc"):
            break
        at = statement.start if statement.head == ".pragma" else at
    return at
