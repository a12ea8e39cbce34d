"""Generate test kernels that make ptxas use as many instruction forms as possible: PTX, made from `kernels/`.

`lines.txt` has one PTX instruction per line, with letters for operands. A kernel contains a few of them: each source is
loaded from memory, so that it has its own register, and each result is stored, so that nothing is optimized away. ptxas
chooses another form if a source is a constant, or uniform across the warp; the line says which of these forms to
generate as well. Files `*.ptx` contain kernels that don't fit on a line (calls, loops, warp groups), each with its
architectures on the first line.

ptxas rejects some lines, so the table may lack forms that occur only in them; `compile_kernels` returns them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count, groupby, islice

from gpt.base.arch import parse_arch
from gpt.base.errors import GptError
from gpt.base.scratch import scratch_folder

LINES = 12  # instructions per kernel
PAIR = "cta_group::2"  # ptxas doesn't accept instructions with and without it in one kernel
TYPES = {"r": "b32", "d": "b64", "f": "f32", "g": "f64", "h": "b16", "q": "b128"}
_LETTER = re.compile(r"(?<![\w%.])([rdfghpqRDFGHPQASCL])(?![\w.])")
_SOURCE = re.compile(r"(?<![\w%.])([rdfgp])(?![\w.])")
_LINE = re.compile(r"(?:\[((?:\.\.)?sm_\w+)\] )?([a-z{].*?)(?: \| ([uai]+))?")
_ERROR = re.compile(r"line (\d+)")
CONSTANTS = {"r": "21", "d": "0x123456789", "f": "0f40490fdb", "g": "0d400921fb54442d18"}


@dataclass
class Variation:
    """A line of lines.txt with its sources, each a letter, preceded by `u` if it's a parameter, or a constant."""

    text: str
    sources: list[str] = field(default_factory=list)


def iter_variations(arch: str) -> Iterator[str]:
    """Yield the instructions of lines.txt for an architecture, with their sources marked `r`, `u:r` or `i:r`."""
    for line in files("gpt.sass.derive").joinpath("kernels", "lines.txt").read_text("utf-8").splitlines():
        found = _LINE.fullmatch(line)
        if not found or (found[1] and not _has(arch, found[1])):
            continue
        text, ways = found[2], found[3] or ""
        yield text
        places = [match.start() for match in _SOURCE.finditer(text)]
        for way in ways:
            groups = [places] if way == "a" else [[place] for place in places]
            for group in groups:
                if way == "i" and text[group[0]] == "p":
                    continue
                made = text
                for place in reversed(group):
                    made = f"{made[:place]}{'i' if way == 'i' else 'u'}:{made[place:]}"
                yield made


def _has(arch: str, wanted: str) -> bool:
    """Return whether a line in brackets is for an architecture: `sm_90` and later, up to `..sm_90`, only `sm_100a`."""
    if wanted.startswith(".."):
        return parse_arch(arch)[:2] <= parse_arch(wanted[2:])[:2]
    return arch == wanted if wanted.endswith("a") else parse_arch(wanted) <= parse_arch(arch)


class Kernel:
    """The text of a kernel with several instructions."""

    def __init__(self, name: str, instructions: list[str]) -> None:
        self.name = name
        self.instructions = instructions

    def text(self) -> str:
        """Return the PTX."""
        self._lines: list[str] = []
        self._declared: list[str] = []
        self._offset = 0
        self._parameter = 0
        for index, instruction in enumerate(self.instructions):
            self._add(index, instruction)
        body = "\n".join(
            [
                "  .reg .b64 %in, %out, %lane; .reg .b32 %t; .reg .pred %q;",
                *self._declared,
                "  ld.param.b64 %in, [in]; ld.param.b64 %out, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %lane, %t, 4096;",
                "  add.s64 %in, %in, %lane; add.s64 %out, %out, %lane;",
                *self._lines,
                "  ret;",
            ]
        )
        return (
            f".visible .entry {self.name}(.param .b64 in, .param .b64 out, .param .align 16 .b8 uniform[2048])"
            f" {{\n  .local .align 16 .b8 stack[256];\n{body}\n}}\n"
        )

    def _add(self, index: int, instruction: str) -> None:
        before: list[str] = []
        after: list[str] = []
        count = 0

        def name(match: re.Match[str]) -> str:
            nonlocal count
            count += 1
            way, letter = match[1], match[2]
            register = f"%x{index}_{count}"
            if way == "i:":
                return CONSTANTS[letter]
            return self._operand(letter, way == "u:", register, before, after)

        text = re.sub(r"(?<![\w%.])([ui]:)?([rdfghpqRDFGHPQASCL])(?![\w.])", name, instruction)
        self._lines += [*before, f"  {text}{'' if text.endswith('}') and text.startswith('{') else ';'}", *after]

    def _operand(self, letter: str, uniform: bool, register: str, before: list[str], after: list[str]) -> str:
        kind = (
            "pred"
            if letter in "pP"
            else {"A": "b64", "S": "b32", "L": "b32", "C": "b64"}.get(letter, TYPES.get(letter.lower(), ""))
        )
        self._declared.append(f"  .reg .{kind} {register};")
        at = self._offset = self._offset + 16
        place = f"[uniform+{at % 2048}]" if uniform else f"[%in+{at}]"
        load = "ld.param" if uniform else "ld.global"
        if letter == "p":
            self._declared.append(f"  .reg .b32 {register}n;")
            before += [f"  {load}.b32 {register}n, {place};", f"  setp.ne.s32 {register}, {register}n, 0;"]
        elif letter == "P":
            self._declared.append(f"  .reg .b32 {register}n;")
            after += [f"  selp.b32 {register}n, 1, 0, {register};", f"  st.global.b32 [%out+{at}], {register}n;"]
        elif letter in "ASCL" or letter.islower():
            before.append(f"  {load}.{kind} {register}, {place};")
        else:
            after.append(f"  st.global.{kind} [%out+{at}], {register};")
        return register


def iter_modules(arch: str) -> Iterator[tuple[str, str]]:
    """Yield the name and PTX of each module for an architecture, without its first lines (version and target)."""
    number = count()
    for _, variations in groupby(iter_variations(arch), lambda text: PAIR in text):
        while some := list(islice(variations, LINES)):
            name = f"lines{next(number)}"
            yield name, Kernel(name, some).text()
    for path in sorted(files("gpt.sass.derive").joinpath("kernels").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".ptx"):
            text = path.read_text("utf-8")
            wanted = re.match(r"// for (.*)", text)
            if wanted and arch in wanted[1].split():
                yield path.name.removesuffix(".ptx"), text


def compile_ptx(ptxas: str, arch: str, text: str) -> bytes:
    """Compile PTX without its first lines, and return the cubin. Raises GptError with ptxas's message."""
    head = f".version 9.0\n.target {arch}\n.address_size 64\n.const .b32 c0[64];\n"
    with scratch_folder("gpt-derive-") as folder:
        folder.write("k.ptx", (head + text).encode())
        command = [ptxas, "-arch", arch, "k.ptx", "-o", "k.cubin"]
        done = subprocess.run(command, cwd=folder.working, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GptError(done.stderr, ptxas)
        return folder.read("k.cubin")
