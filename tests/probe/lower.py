"""Turn snippets into a kernel, and simulate them: the reference for tests of the verifier and of Python probes.

`kernel_of` isn't a weaver: helpers become registers of their types, and SAVE stores to the address in a parameter.
"""

import operator

from gpt.probe.model import HELPERS, Save, names_of
from gpt.ptx.tree import Instruction, Label, Name, Number, Prefixed


def kernel_of(file, operand_type="b32"):
    """Return a PTX module with one kernel that runs every snippet of a file. OUT and IN1 have the
    type `operand_type`.
    """
    lines = [f".reg .{register.type} {register.name};" for register in file.registers]
    used = {
        name
        for probe in file.probes
        for _, snippet in probe.snippets
        for line in snippet.lines
        for name in names_of(line.node)
    }
    lines += [f".reg .{HELPERS[name] or operand_type} {name};" for name in sorted(used) if name in HELPERS]
    lines += [".reg .b64 address;", "ld.param.u64 address, [p];"]
    for register in file.registers:
        if register.initial is not None:
            lines.append(f"mov.b{register.type[1:]} {register.name}, {register.initial};")
    for number, (_, snippet) in enumerate(pair for probe in file.probes for pair in probe.snippets):
        lines.append("{")
        for line in snippet.lines:
            if isinstance(line.node, Save):
                fields = file.map(line.node.map).fields[line.node.first :]
                guard = f"{line.node.guard} " if line.node.guard else ""
                for value, field in zip(line.node.values, fields, strict=False):
                    held = f"saved_{number}_{field.name}_{len(lines)}"
                    lines += [
                        f".reg .b{8 * field.size} {held};",
                        f"mov.b{8 * field.size} {held}, {value};",
                        f"{guard}st.global.b{8 * field.size} [address+{field.offset}], {held};",
                    ]
            else:
                text = str(line.node)
                wide = isinstance(line.node, Instruction) and any(m[2:] == "64" for m in line.node.modifiers)
                lines.append(text.replace("BYTES", "16") if wide else text)
        lines.append("}")
    body = "\n".join(lines)
    return f".version 8.0\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p)\n{{\n{body}\nret;\n}}\n".encode()


# On paper

BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": min,
    "max": max,
}


def run(snippet, registers, helpers=None):
    """Simulate a snippet with integers and without branches, which changes `registers`; return the records that it
    saves.
    """
    values = {**(helpers or {}), **registers}
    saved = []

    def read(operand, type_):
        match operand:
            case Number(text):
                number = int(text)
            case Name(name):
                number = values[name]
            case Prefixed(("-",), inner):
                number = -read(inner, type_)
        if type_ == "pred":
            return bool(number)
        bits = int(type_[1:])
        number &= (1 << bits) - 1
        return number - (1 << bits) if type_[0] == "s" and number >> (bits - 1) else number

    for line in snippet.lines:
        node = line.node
        assert not isinstance(node, Label)
        if node.guard and bool(values[node.guard.register]) == node.guard.negated:
            continue
        if isinstance(node, Save):
            saved.append(tuple(read(value, "u64") for value in node.values))
            continue
        assert isinstance(node, Instruction)
        target, *operands = node.operands
        types = [m[1:] for m in node.modifiers if m == ".pred" or (m[1] in "bus" and m[2:].isdecimal())]
        last = types[-1]
        match node.opcode:
            case "setp":
                result = getattr(operator, node.modifiers[0][1:])(*(read(operand, last) for operand in operands))
            case "selp":
                result = read(operands[0] if read(operands[2], "pred") else operands[1], last)
            case "not":
                result = not read(operands[0], last) if last == "pred" else ~read(operands[0], last)
            case "neg":
                result = -read(operands[0], last)
            case "mov" | "cvt":
                result = read(operands[0], last)
            case "shl" | "shr":
                amount = min(read(operands[1], "u32"), 200)
                value = read(operands[0], last)
                result = value << amount if node.opcode == "shl" else value >> amount
            case opcode:
                result = BINARY[opcode](*(read(operand, last) for operand in operands))
        values[target.name] = result if types[0] == "pred" else result & ((1 << int(types[0][1:])) - 1)
    registers.update({name: values[name] for name in registers})
    return saved
