"""Branches, calls, and dynamic stack allocation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from gpt.asm.host.names import WITHOUT_ABI, Unsupported, c_function, evaluate
from gpt.asm.host.table import TYPES, PtxType, Row
from gpt.asm.host.use import InstructionUse
from gpt.asm.host.variables import WIDTHS, shape_of
from gpt.ptx import tree
from gpt.ptx.types import FLOAT, takes

# Functions that the device provides: the C for a call, with its result r0_ and arguments p0_, p1_, ...
_SERVICES = {
    "vprintf": "r0_ = (uint32_t)t->services->print(t, {site}, p0_, p1_);",
    "__assertfail": "t->services->fail(t, {site}, p0_, p1_, p2_, p3_);",
    "malloc": "r0_ = t->services->allocate(t, {site}, p0_);",
    "free": "t->services->release(t, {site}, p0_);",
}


def _branch(use: InstructionUse) -> str:
    """Write a branch; a backward one uses up the thread's budget."""
    (target,) = use.operands
    if not isinstance(target, tree.Name) or not (label := use.body.find_label(target.name)):
        raise Unsupported(f"no label '{target}'")
    if label.index > use.body.index:
        return f"goto {label.name};"
    return f"host_back(t, {use.site}); goto {label.name};"


def _branch_indexed(use: InstructionUse) -> str:
    index, name = use.operands
    use.check(index, TYPES["u32"], exact=True)
    listed = use.body.find_list(name.name) if isinstance(name, tree.Name) else None
    if not isinstance(listed, tree.Directive) or listed.word != ".branchtargets":
        raise Unsupported(f"no .branchtargets '{name}'")
    cases = []
    for number, target in enumerate(listed.text.split(",")):
        label = use.body.find_label(target.strip())
        if not label:
            raise Unsupported(f"no label '{target.strip()}'")
        cases.append(f"case {number}: goto {label.name};")
    outside = f"default: t->services->fault(t, {use.site}, HOST_FAULT_INSTRUCTION, 0);"
    return f"host_back(t, {use.site}); switch ({use.value(index, TYPES['u32'])}) {{ {' '.join([*cases, outside])} }}"


def _call(use: InstructionUse) -> str:
    """Write a call. Results and arguments are passed as addresses; registers are copied to locals first."""
    operands = list(use.operands)
    results = _items(operands.pop(0)) if isinstance(operands[0], tree.OperandGroup) else ()
    callee = operands.pop(0) if operands else tree.Name("_")
    given = _items(operands.pop(0)) if operands and isinstance(operands[0], tree.OperandGroup) else ()
    if not isinstance(callee, tree.Name):
        raise Unsupported(f"a call of '{callee}'")
    code = use.body.code
    if not operands and not use.body.find_register(callee.name) and code.is_function(callee.name):
        head: tree.FunctionNode | tree.Prototype = code.head(callee.name)
        _check_arguments(use, head, results, given)
        if not code.is_defined(callee.name):
            if not code.has_abi:
                raise Unsupported(f"a call of '{callee.name}' outside of the module, {WITHOUT_ABI}")
            return _serve(use, callee.name, head, results, given)
        called = c_function(callee.name)
    else:
        head = _prototype(use, operands[0] if operands else callee)
        _check_arguments(use, head, results, given)
        count = len(head.returns or ()) + len(head.params or ())
        pointers = ", ".join(["struct host_thread *", *["unsigned char *"] * count])
        address = use.value(callee, TYPES["u64"])
        called = f"((void (*)({pointers}))host_function(t, {use.site}, {code.targets()}, {address}))"
    before, after, arguments = [], [], ["t"]
    use.refuse_sums(given)
    for name, formals, actuals in (("r", head.returns, results), ("a", head.params, given)):
        for number, (formal, actual) in enumerate(zip(formals or (), actuals, strict=True)):
            place = use.body.find_place(actual.name) if isinstance(actual, tree.Name) else None
            if place and place.space == "param":
                arguments.append(f"(unsigned char *)({place.pointer})")
                continue
            (type_, items), local = _registers(use, formal, actual), f"{name}{number}_"
            if type_.name == "pred" and not isinstance(actual, tree.Name):
                raise Unsupported(f"'{actual}' where a predicate is expected")
            values = ["0"] * len(items) if name == "r" else [use.value(item, type_) for item in items]
            before.append(f"{type_} {local}[] = {{{', '.join(values)}}};")
            if name == "r":
                after += [use.assign(item, type_, f"{local}[{at}]") for at, item in enumerate(items)]
            arguments.append(f"(unsigned char *){local}")
    return " ".join(["{", *before, f"{called}({', '.join(arguments)});", *after, "}"])


def _check_arguments(
    use: InstructionUse,
    head: tree.FunctionNode | tree.Prototype,
    results: tuple[tree.Operand, ...],
    given: tuple[tree.Operand, ...],
) -> None:
    """Reject results and arguments that don't have the types of the parameters, as ptxas does. Raises Unsupported."""
    for formals, actuals in ((head.returns or (), results), (head.params or (), given)):
        if len(formals) != len(actuals):
            raise Unsupported("a call with other results or arguments than the function has")
        for formal, actual in zip(formals, actuals, strict=True):
            wanted = shape_of(formal.specifiers, formal.declarator)
            found = _shape(use, actual)
            same = wanted == found or not (wanted and found)
            if not same and (" " in wanted + found or not _fits(wanted, found)):
                raise Unsupported(f"'{actual}', which is {_said(found)}, for a parameter that is {_said(wanted)}")


def _fits(wanted: str, found: str) -> bool:
    if found == "f16x2" and wanted == "f32":
        return True
    return wanted[0] != "u" and wanted[0] != "s" if found == "float" else takes("", wanted, found)


def _said(shape: str) -> str:
    return shape if " " in shape else f".{shape}"


def _shape(use: InstructionUse, actual: tree.Operand) -> str:
    """Return the shape of an argument, or "" if it fits any parameter (integers, `_`) or is rejected elsewhere."""
    if isinstance(actual, tree.Name) and not actual.parts and (place := use.body.find_place(actual.name)):
        return place.shape if place.space == "param" else ""
    if isinstance(actual, tree.Name) and (register := use.body.find_register(actual.name, actual.parts)):
        return register.declared if register.width == 1 else ""
    number = actual.operand if isinstance(actual, tree.Prefixed) else actual
    return "float" if isinstance(number, tree.Number) and FLOAT.fullmatch(number.text) else ""


def _items(group: tree.Operand) -> tuple[tree.Operand, ...]:
    assert isinstance(group, tree.OperandGroup)
    return group.items


def _registers(
    use: InstructionUse, formal: tree.Parameter, actual: tree.Operand
) -> tuple[PtxType, tuple[tree.Operand, ...]]:
    """Return the type and the registers (or constant) of an argument or result that isn't in a variable.

    A vector needs a parameter with as many elements of the same size. ptxas accepts others of the same total size, but
    its code gives different results on an H200.
    """
    type_ = _type(formal)
    type_ = type_ if type_.is_float or type_.name == "pred" else type_.unsigned
    width = next((WIDTHS[s.word] for s in formal.specifiers if s.word in WIDTHS), 1)
    found = use.body.find_register(actual.name) if isinstance(actual, tree.Name) and not actual.parts else None
    given = found.width if found else 1
    if given == width == 1 or actual == tree.Name("_"):
        return type_, (actual,) * width
    if not found or (found.width, found.type.bits) != (width, type_.bits):
        raise Unsupported(f"'{actual}' for the {'vector ' * (width > 1)}parameter '{formal}'")
    return found.type, tuple(use.vector(actual))


def _type(parameter: tree.Parameter) -> PtxType:
    types = [TYPES[s.word[1:]] for s in parameter.specifiers if s.word[1:] in TYPES]
    if len(types) != 1 or parameter.declarator.dimensions:
        raise Unsupported(f"a register or constant for '{parameter}'")
    return types[0]


def _serve(
    use: InstructionUse,
    name: str,
    head: tree.FunctionNode | tree.Prototype,
    results: tuple[tree.Operand, ...],
    given: tuple[tree.Operand, ...],
) -> str:
    """Write a call of a function that the device provides."""
    if name not in _SERVICES:
        if name.startswith(("cuda", "__cuda")):  # kernels that launch kernels call these
            raise Unsupported(f"function '{name}' of CUDA's device runtime is missing here: see gpt-sim(7)")
        raise Unsupported(f"function '{name}' is not defined here")
    lines, after = [], []
    for number, (parameter, operand) in enumerate(zip_longest(head.params or (), given)):
        type_ = _type(parameter).unsigned
        lines.append(f"{type_} p{number}_ = {_stored(use, operand, type_)};")
    for number, (parameter, operand) in enumerate(zip_longest(head.returns or (), results)):
        type_ = _type(parameter).unsigned
        lines.append(f"{type_} r{number}_;")
        after.append(f"{_stored(use, operand, type_)} = r{number}_;")
    return " ".join(["{", *lines, _SERVICES[name].format(site=use.site), *after, "}"])


def _stored(use: InstructionUse, operand: tree.Operand, type_: PtxType) -> str:
    """Return a value in a .param variable or in a register."""
    place = use.body.find_place(operand.name) if isinstance(operand, tree.Name) else None
    return f"*({type_} *)({place.pointer})" if place and place.space == "param" else use.value(operand, type_)


def _prototype(use: InstructionUse, name: tree.Operand) -> tree.FunctionNode | tree.Prototype:
    """Return the signature for an indirect call: its `.callprototype`, or the first of its `.calltargets`."""
    listed = use.body.find_list(name.name) if isinstance(name, tree.Name) else None
    if isinstance(listed, tree.Prototype):
        return listed
    if isinstance(listed, tree.Directive) and listed.word == ".calltargets":
        return use.body.code.head(listed.text.split(",")[0].strip())
    raise Unsupported(f"no function and no prototype '{name}'")


def _exit(use: InstructionUse) -> str:
    return "return;" if use.body.is_kernel else "t->services->exit(t);"


def _allocate(use: InstructionUse) -> str:
    """Write alloca. `top` is the current end of the stack, `low` the end of the memory taken from C's stack, so space
    that stackrestore freed is used again.
    """
    use.body.use_stack()
    align = 8
    if len(use.operands) > 2:
        align = evaluate(use.operands[2])
        if align < 1 or align & (align - 1):
            raise Unsupported(f"alignment {use.operands[2]} is not a power of two")
    size = use.value(use.operands[1], TYPES["u64"])
    type_ = use.words["T"]
    assert isinstance(type_, PtxType)
    value = use.assign(use.operands[0], type_, f"({type_})host_offset(t, top)")
    return f"{{ uint64_t size_ = {size}; HOST_ALLOCATE({use.site}, size_, {align}); {value} }}"


def _save(use: InstructionUse) -> str:
    if use.operands[0] == tree.Name("_"):
        raise Unsupported("'_' where a register is expected")
    use.body.use_stack()
    type_ = use.words["T"]
    assert isinstance(type_, PtxType)
    return use.assign(use.operands[0], type_, f"({type_})(top ? host_offset(t, top) : 0)")


def _restore(use: InstructionUse) -> str:
    use.body.use_stack()
    return f"{{ uint64_t to_ = {use.value(use.operands[0], TYPES['u64'])}; top = to_ ? t->local + to_ : high; }}"


def _calls() -> Iterator[Row]:
    for signature in ("= a", "= a b", "= a b c", "= a b c e"):
        yield Row("call{.uni}", signature, _call)


_TRAP = "t->services->fault({thread}, {site}, HOST_FAULT_TRAP, 0);"
ROWS = [
    Row("bra{.uni}", "= a", _branch),
    Row("brx.idx{.uni}", "= a:u32 b", _branch_indexed),
    *_calls(),
    Row("ret{.uni}", "", lambda _: "goto leave;"),
    Row("exit", "", _exit),
    Row("trap", "", _TRAP),
    Row("brkpt", "", _TRAP),
    Row("alloca.T", "d = a", _allocate, needs=": 7.3", T="u32 u64"),
    Row("alloca.T", "d = a align:number", _allocate, needs=": 7.3", T="u32 u64"),
    Row("stacksave.T", "= a", _save, needs=": 7.3", T="u32 u64"),
    Row("stackrestore.T", "= a", _restore, needs=": 7.3", T="u32 u64"),
]
