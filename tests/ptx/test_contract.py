"""gpt/ptx/contract.py finds the pairs that ptxas fuses.

Random kernels of products, sums and copies are compiled unchanged, and with their pairs written as fma. The values that
each kernel stores, as expressions of the values that it loads, must be the same.
"""

import random
import re
from contextlib import suppress
from functools import cache

import pytest

from gpt.base.errors import GptError
from gpt.probe.ptx.weave import unweave, weave
from gpt.ptx.contract import contracted
from gpt.ptx.scan import scan_module
from tests import cuda
from tests.probe.ptx.woven import simple
from tests.tiers import first, full

TYPES = {"f32": ("f32", 4), "f64": ("f64", 8), "f16x2": ("b32", 4), "bf16x2": ("b32", 4)}
HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
LOADED = 6


def make(rng: random.Random, type_: str, between: str = "") -> str:
    """Return a kernel's body: loads, a dozen instructions, stores."""
    register, size = TYPES[type_]
    code = []
    values = list(range(LOADED))
    used = set()
    for new in range(LOADED, LOADED + rng.randint(3, 12)):
        word = rng.choices(("mul", "add", "sub", "neg", "mov"), (9, 5, 5, 1, 1))[0]
        read = [rng.choice(values[-6:]), rng.choice(values)][: 1 if word in ("neg", "mov") else 2]
        kind = {"f64": "f64", "f32": "f32"}.get(type_, "b32") if word == "mov" else type_
        code.append(f"{word}.{kind} %v{new}, {', '.join(f'%v{number}' for number in read)};")
        values.append(new)
        used |= set(read)
        code += [between] * (rng.random() < 0.5)
    stored = [v for v in values[LOADED:] if v not in used or rng.random() < 0.1]
    lines = [f".reg .{register} %v<32>; .reg .b64 %a; .reg .b32 %x<9>; .reg .pred %p<9>;", "ld.param.u64 %a, [a];"]
    lines += [f"ld.global.b{8 * size} %v{number}, [%a+{size * number}];" for number in range(LOADED)]
    stores = [f"st.global.b{8 * size} [%a+{1024 + size * place}], %v{v};" for place, v in enumerate(stored)]
    return "\n".join([*lines, *code, *stores, "ret;"])


def kernel(name: str, body: str) -> str:
    return f".visible .entry {name}(.param .u64 a)\n{{\n{body}\n}}\n"


def module(bodies: list[str]) -> str:
    return HEAD + "".join(kernel(f"k{n}", body) for n, body in enumerate(bodies))


def code_of(text: str) -> dict[str, str]:
    """Return the code that ptxas generates for each kernel."""
    listing = cuda.disassemble(cuda.assemble(text))
    parts = (part.partition(",") for part in listing.split("\t.section\t.text.")[1:])
    return {name: code for name, _, code in parts}


def minus(e):
    return e[1] if e[0] == "-" else ("-", e)


def product(a, b):
    odd = (a[0] == "-") != (b[0] == "-")
    a, b = (e[1] if e[0] == "-" else e for e in (a, b))
    whole = ("*", *sorted((a, b), key=repr))
    return minus(whole) if odd else whole


def total(*terms):
    return ("+", *sorted(terms, key=repr))


def fused(a, b, c):
    return ("fma", product(a, b), c)


def expressions(code: str) -> dict[int, tuple]:
    """Return what straight-line code stores."""
    values: dict[str, tuple] = {}
    found = {}

    def read(word: str) -> tuple:
        word = word.strip().replace(".reuse", "").replace(".H0_H0", "")
        if word.lstrip("-") == "RZ":
            return ("zero",)
        return minus(values[word[1:]]) if word[0] == "-" else values[word]

    def offset(address: str) -> int:
        written = re.search(r"\+(0x[0-9a-f]+)\]", address)
        return int(written[1], 16) if written else 0

    for opcode, rest in re.findall(r"/\*[0-9a-f]{4}\*/\s+(\w+)\S* (.*?) ;", code):
        words = rest.split(",")
        match opcode:
            case "LDG":
                values[words[0]] = ("x", offset(rest))
            case "STG":
                found[offset(rest)] = read(words[-1])
            case "MOV":
                values[words[0]] = read(words[1])
            case "FMUL" | "DMUL" | "HMUL2":
                values[words[0]] = product(*map(read, words[1:]))
            case "FADD" | "DADD" | "HADD2":
                values[words[0]] = read(words[1]) if "RZ" in words[2] else total(*map(read, words[1:]))
            case "FFMA" | "DFMA" | "HFMA2":
                if words[2].strip() == "1":
                    values[words[0]] = total(read(words[1]), read(words[-1]))
                elif "RZ" in words[1]:
                    values[words[0]] = read(words[-1])
                elif "RZ" in words[3]:
                    values[words[0]] = product(*map(read, words[1:3]))
                else:
                    values[words[0]] = fused(*map(read, words[1:4]))
    return found


@cache
def stored(count: int) -> dict[str, dict]:
    """Return what each kernel stores, by offset, for kernels of all types, unchanged and contracted."""
    text = HEAD
    for type_ in TYPES:
        plain = module([make(random.Random(seed), type_) for seed in range(count)])
        fused = contracted(scan_module(plain.encode(), "k")).text
        for what, made in (("plain", plain), ("fused", fused)):
            text += made.removeprefix(HEAD).replace(".entry k", f".entry {what}_{type_}_")
    return {name: expressions(code) for name, code in code_of(text).items()}


@pytest.mark.parametrize("count", [20, full(300)])
@pytest.mark.parametrize("type_", first(*TYPES))
def test_pairs_are_those_of_ptxas(type_, count):
    plain, fused = ([stored(count)[f"{what}_{type_}_{n}"] for n in range(count)] for what in ("plain", "fused"))
    assert str(plain).count("'fma'") > count // 2
    assert fused == plain


BETWEEN = {  # instructions between a product and its sum, and whether they end a stretch
    "bar.sync 0;": False,
    "atom.global.add.u32 %x0, [%a+64], 1;": False,
    "div.full.f32 %d0, %v1, %v2;": False,
    "setp.eq.u32 %p0, %x1, 7;\n@%p0 add.u32 %x2, %x1, 3;": False,
    "membar.gl;": True,
    "setp.eq.u32 %p0, %x1, 7;\n@%p0 red.global.add.u32 [%a+64], 1;": True,
    "div.rn.f32 %d0, %v1, %v2;": True,
}


def with_between(between: str) -> str:
    body = make(random.Random(0), "f32").partition("ld.param")[0]
    body += ".reg .f32 %d0;\nld.param.u64 %a, [a];\nld.global.u32 %x1, [%a+80];\n"
    body += "mov.u32 %x2, 0;\nmov.f32 %d0, 0f00000000;\n"
    body += "".join(f"ld.global.f32 %v{n}, [%a+{4 * n}];\n" for n in range(4))
    tail = "\nst.global.f32 [%a], %v5;\nst.global.u32 [%a+4], %x2;\nst.global.f32 [%a+8], %d0;\nret;"
    return f"{body}mul.f32 %v4, %v0, %v1;\n{between}\nadd.f32 %v5, %v4, %v3;{tail}"


@cache
def opcodes_between() -> dict[str, list[str]]:
    """Return the opcodes of each kernel, and of the same kernel with instructions that can't be fused."""
    text = module([with_between(between) for between in BETWEEN])
    rounded = text.replace("mul.f32", "mul.rn.f32").replace("add.f32", "add.rn.f32").replace(".entry k", ".entry r")
    return {name: opcodes(code) for name, code in code_of(text + rounded.removeprefix(HEAD)).items()}


@pytest.mark.parametrize("between", BETWEEN)
def test_statements_that_prevent_fusion_are_recognized(between):
    ends, number = BETWEEN[between], list(BETWEEN).index(between)
    text = module([with_between(between)])
    assert ("fma.rn" in contracted(scan_module(text.encode(), "k")).text) != ends
    assert (opcodes_between()[f"k{number}"] == opcodes_between()[f"r{number}"]) == ends


def opcodes(code: str) -> list[str]:
    return sorted(re.findall(r"\b(?:FFMA|FMUL|FADD)\b", code))


def test_operands_are_kept_where_they_are_overwritten():
    body = ".reg .f32 %f<9>; .reg .b64 %a;\nld.param.u64 %a, [a];\nld.global.f32 %f1, [%a];\nmul.f32 %f2, %f1, %f1;\n"
    body += "ld.global.f32 %f1, [%a+4];\nsub.f32 %f3, %f1, %f2;\nst.global.f32 [%a], %f3;\nret;"
    text = contracted(scan_module(module([body]).encode(), "k")).text
    assert "mov.f32 fused0_" in text and text.count("\n") == module([body]).count("\n")
    assert re.search(r"neg\.f32 (\w+), fused0_\w+_0; fma\.rn\.f32 %f3, \1, fused0_\w+_1, %f1;", text)


@pytest.mark.parametrize("result", ["{%f2, %f4}", "%f2|%p1", "%v.x", "_", "[%a]", "5"])
def test_a_product_without_a_register_of_its_own_is_left_alone(result):
    """ptxas rejects most of these, and reports that itself."""
    body = f".reg .f32 %f<9>; .reg .b64 %a;\nmul.f32 {result}, %f1, %f1;\nadd.f32 %f3, %f2, %f1;\n"
    body += "mul.f32 %f6, %f1, %f1;\nadd.f32 %f7, %f1, %f1, %f6;\nret;"
    read = scan_module(module([body]).encode(), "k")
    assert contracted(read) is read


def test_damaged_text_is_refused_or_read():
    """The input is hostile: only our own errors may be raised."""
    words = ["%f1", ",", ";", "{", "}", "@%p", "mul.f32", "add.f32", "sub.f64", "mov.b32", "bra", "L:", "[", "|", "5"]
    for seed in range(1500):
        rng = random.Random(seed)
        text = module([make(rng, rng.choice(list(TYPES)), "bar.sync 0;")])
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(words) + text[at + rng.randint(0, 8) :]
        with suppress(GptError):
            contracted(scan_module(text.encode(), "k"))


@pytest.mark.full
def test_a_probe_between_changes_no_result():
    """All kernels are assembled as one module, because weaving adds the same declarations to every module."""
    text, names = HEAD, []
    for seed in range(12):
        plain = HEAD + kernel(f"k{seed}", make(random.Random(seed), "f32", "red.global.add.u32 [%a+512], 1;"))
        if "red." not in plain:
            continue
        woven = weave(plain.encode(), f"k{seed}", [simple("red", "mov.u32 %a, %laneid;")])
        assert unweave(woven.data) == plain.encode()
        text += plain.removeprefix(HEAD) + woven.data.decode().removeprefix(HEAD).replace(
            f".entry k{seed}(", f".entry w{seed}("
        )
        names.append(seed)
    found = {name: opcodes(code).count("FFMA") for name, code in code_of(text).items()}
    assert sum(found.values()) > 0
    assert all(found[f"w{seed}"] == found[f"k{seed}"] for seed in names)
