"""Pass the state of probes through calls: find the functions that need it, and add a parameter for it.

Every function on a call path from the kernel to a probe in a device function gets an extra parameter, and so do its
prototypes and the calls to it, including calls through an `.alias`. Registers are stored in the memory of the state
before such a call and at the exits of the function, and loaded after the call and at the entry of the function. If the
name of such a function occurs anywhere else, it could be called without the parameter, so the kernel is left alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from gpt.base.patterns import compiled
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.ptx.edits import CALL_IN, CALL_OUT, DECLARE, STATE_IN, STATE_OUT, Insertions
from gpt.probe.ptx.function import PtxFunction
from gpt.probe.ptx.state import State
from gpt.ptx import tokens
from gpt.ptx.params import room
from gpt.ptx.quick import parse_params
from gpt.ptx.scan import NAME, Module, Statement, find_name

_CALL = compiled(  # the name of the called function
    rf"(?:{tokens.GUARD})?+call{tokens.MODIFIERS}\s*+(?:\([^()]*+\)\s*+,\s*+)?+({tokens.NAME})", re.ASCII
)


def propagate(module: Module, functions: Sequence[PtxFunction], kernel: str) -> None:
    """Return the functions that need the state: functions with probes, and functions that call one of these, directly
    or indirectly. Raises LeftAlone.
    """
    waiting = [f for f in functions if f.uses and not f.is_kernel]
    if not waiting:
        return
    callers = defaultdict(list)
    for function in functions:
        for name in _calls(module, function).values():
            callers[_defined(module, name)].append(function)
    while waiting:
        function = waiting.pop()
        if not function.stateful:
            function.stateful = True
            waiting += callers[function.item.name]
    others = _other_uses(module, functions)
    for function in functions:
        name = function.item.name
        if not function.stateful or function.is_kernel:
            continue
        reason, params = others.get(name, ""), parse_params(module, function.item) or ()
        if any(s.word == ".reg" for p in params for s in p.specifiers):
            reason = reason or "whose parameters are registers"
        elif any(None in p.declarator.dimensions for p in params):  # an array without a size must be last
            reason = reason or "whose arguments vary in number"
        if reason:
            raise LeftAlone("function", f"'{name}', {reason}", kernel)


def _other_uses(module: Module, functions: Sequence[PtxFunction]) -> dict[str, str]:
    """Return the functions whose names occur anywhere except in declarations, aliases and known calls, and where they
    do.
    """
    own = {function.item: function for function in functions}
    found: dict[str, str] = {}
    for item in module.items:
        if item.kind in ("section", "alias"):
            continue
        named = Counter(NAME.findall(module.skeleton, item.start, item.end))
        named.subtract([item.name] if item.kind == "func" else ())
        function = own.get(item)
        if function:
            named.subtract(_calls(module, function).values())
            named.subtract(statement.head.partition(".")[0] for statement in function.statements)  # sin, min
        is_foreign = item.kind == "entry" and not function
        reason = "which another kernel calls" if is_foreign else f"whose name is in '{item.name}', not in a call"
        for name, count in named.items():
            if count > 0:
                found.setdefault(_defined(module, name), reason)
    return found


def _defined(module: Module, name: str) -> str:
    """Resolve an alias to the name under which the function is defined."""
    return module.aliases.get(name, name)


def _calls(module: Module, function: PtxFunction) -> dict[int, str]:
    """Return the functions called by name, by the number of the calling statement."""
    found = {}
    for number in function.numbers("call"):
        statement = function.statements[number]
        if match := _CALL.match(module.skeleton, statement.start, statement.end):
            found[number] = match[1]
    return found


def pass_state(module: Module, functions: Sequence[PtxFunction], state: State, to: Insertions) -> None:
    """Add the parameter to functions, prototypes and calls, and store and load the registers around them."""
    stateful = {function.item.name for function in functions if function.stateful}
    for item in module.items:
        if item.kind == "func" and _defined(module, item.name) in stateful:
            at, before, after = room(module, item)
            to.add(at, DECLARE, [f"{before}.param .b64 {state.prefix}in{after}"])
    for function in functions:
        if function.stateful:
            _pass_on(module, function, stateful, state, to)


def _pass_on(module: Module, function: PtxFunction, stateful: set[str], state: State, to: Insertions) -> None:
    used, code, statements, body = function.shared, function.code, function.statements, function.item.body + 1
    for number, name in _calls(module, function).items():
        if _defined(module, name) in stateful:
            at, before, after = _find_argument(module, statements[number], name)
            to.add(at, CALL_IN, [f"{before}%{state.prefix}state{after}"])
            to.add(in_front(statements, number), STATE_OUT, state.store(used, code))
            to.add(statements[number].end, CALL_OUT, state.load(used, code))
    for number in function.numbers("ret") if not function.is_kernel else ():
        to.add(in_front(statements, number), CALL_IN, state.store(used, code))
    if function.is_kernel:
        to.add(body, STATE_IN, state.begin(code))
        return
    to.add(function.item.end - 1, CALL_IN, state.store(used, code))
    to.add(body, STATE_IN, state.enter(used, code))


def _find_argument(module: Module, statement: Statement, name: str) -> tuple[int, str, str]:
    """Return the offset at which an argument can be added to a call, and the text before and after it. Raises
    MalformedError.
    """
    text = module.skeleton
    after = find_name(text, name, statement.start, statement.end) + len(name)
    at = text.find("(", after, statement.end)
    if at < 0:
        return after, ", (", ")"
    end = text.find(")", at, statement.end)
    if end < 0:
        raise module.malformed(at, "no end to")
    return end, ", " if text[at + 1 : end].strip() else "", ""


def in_front(statements: Sequence[Statement], number: int) -> int:
    """Return the offset before a statement, and before the pragmas that apply to it."""
    at = statements[number].start
    while number and statements[number - 1].head in (".pragma", ".loc"):
        number -= 1
        at = statements[number].start if statements[number].head == ".pragma" else at
    return at
