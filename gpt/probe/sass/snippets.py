"""Compile bodies (body.py) with ptxas, and find out what the resulting words need.

All bodies of a kernel that aren't cached are compiled in one run, each as a function. The words before the last RET are
the snippet. Without the RET, the word after the snippet has to take over the waits of the RET. waits.py adds the
waits that a function leaves to its caller.

ptxas has a mode for the code that NVIDIA's own tools insert into kernels (-astoolspatch). It uses no uniform registers,
and no descriptors for global memory, for which a function needs uniform registers, too. But it has no redux, and only
16 registers besides the registers that calls preserve. What needs more is compiled as a separate function (-c).

Compiled words are cached in memory and in the user's cache, by a digest of their text. The package ships words for the
built-in probes under the same keys (shipped.py), so these need no ptxas. A body's text depends on the face, on the
values that the probe keeps, on the fields that the kernel leaves idle, and on everything that lowering writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgpack

from gpt.base.cache import Cache, default_folder, key_of
from gpt.base.errors import GptError
from gpt.base.scratch import scratch_folder
from gpt.formats import elftables
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_edit import table_of as read_table
from gpt.formats.elf import SHT_RELA
from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass import glue
from gpt.probe.sass.body import ADDEND, ADDS, AT_EXIT, FIRST
from gpt.probe.sass.compiled import Compiled
from gpt.probe.sass.draft import with_change
from gpt.probe.sass.lowering import Lowerer
from gpt.probe.sass.schedule import reorder
from gpt.probe.sass.shipped import Shipped
from gpt.probe.sass.shorten import shorten
from gpt.probe.sass.waits import announce, await_reads, await_results, find_unawaited, space
from gpt.sass.check_words import FORBIDDEN, is_collective, make_branch
from gpt.sass.code import Code
from gpt.sass.graph import make_graph
from gpt.sass.live import live_before
from gpt.sass.masks import Registers
from gpt.sass.tables import Table, UnknownOpcodeError
from gpt.sass.words import (
    BARRIERS,
    CONTROL,
    SIZE,
    bits,
    control_of,
    dump_words,
    guard_of,
    opcode_of,
    parse_words,
    with_bits,
    with_guard,
)
from gpt.sass.woven import Snippet

if TYPE_CHECKING:
    from gpt.asm.find import Tool, Tools

FORMAT = b"17"  # version of the cache's format
VERSION = 8, 0  # PTX version
HEAD = ".version {}.{}\n.target {}\n.address_size 64\n"
HINT = "probes whose code isn't part of the package need one; name it in GPT_PTXAS, or install it"
PATIENCE = 60  # seconds that compiling the bodies of a kernel may take
RET, UMOV = "RET", 0x882
_NONE = 255  # RZ
_UNKNOWN = 0xBADC0DE5  # a size of constants that will be filled in
_NOWHERE = 0xFF00  # an offset in the bank of constants that will be filled in
CONSTANTS_SIZE = b".nv.ptx.const0.size"  # a symbol for isspacep: the size of the program's constants in bytes
_GIVEN = re.compile(r"ld\.param\.b(\d+) \S+ \[in\+(\d+)\];")
_RETURNED = re.compile(r"\.b8 out\[(\d+)\]")
_MAP = re.compile(r"ld\.param\.b64 %map_\d+, \[in\+(\d+)\];")
_ADDS = re.compile(rf"{ADDS}(\d+)\n")
_SEPARATE = re.compile(r"\n(?:@\S+ )?(?:redux|isspacep)\b")  # isspacep depends on the program's constants


class Compiler:
    """Compiles bodies for one architecture."""

    def __init__(self, arch: str, table: Table, cache: Cache | None = None, shipped: Shipped | None = None) -> None:
        self._arch, self._table = arch.rstrip("a"), table
        self._cache, self._shipped = cache or Cache(default_folder("snippets")), shipped or Shipped()
        self._tools: Tools | None = None
        self._known: dict[str, Compiled | str] = {}
        self.lowerer = Lowerer()

    def compile(self, texts: list[str]) -> None:
        """Make sure that these bodies are compiled. Raises GptError if ptxas fails, MissingError if it isn't
        installed.
        """
        missing: dict[str, str] = {}
        for text in dict.fromkeys(texts):
            if text not in self._known:
                key = self.key(text)
                data = self._shipped.get(key)
                if data is None:
                    data = self._cache.get(key)
                if data is not None:
                    self._known[text] = self._load(data)
                else:
                    missing[text] = key
        if not missing:
            return
        for (text, key), found in zip(missing.items(), self._run(list(missing)), strict=True):
            self._known[text] = found
            self._cache.put(key, self.dump(text))

    def key(self, text: str) -> str:
        """Return the text's key in the cache and in the package."""
        return key_of([FORMAT, self._arch.encode(), text.encode()])

    def find(self, text: str) -> Compiled:
        """Return a compiled body. Raises CannotProbe if it can't be used as a snippet."""
        found = self._known[text]
        if isinstance(found, str):
            raise CannotProbe(found)
        return found

    def dump(self, text: str) -> bytes:
        """Return a compiled text as the cache and the package store it."""
        found = self._known[text]
        if isinstance(found, str):
            return bytes(msgpack.packb(found))
        snippet = found.snippet
        places = [list(found.sized), list(found.parameters), list(found.adding)]
        return bytes(msgpack.packb([dump_words(snippet.words), snippet.inputs.R, found.wait, *places]))

    def _load(self, data: bytes) -> Compiled | str:
        found = msgpack.unpackb(data)
        if isinstance(found, str):
            return found
        words, inputs, wait, sized, parameters, adding = found
        snippet = Snippet(tuple(parse_words(words)), Registers(R=inputs))
        return Compiled(snippet, self._table, wait, tuple(sized), tuple(map(tuple, parameters)), tuple(adding))

    def _run(self, texts: list[str]) -> list[Compiled | str]:
        from gpt.asm.find import Tools
        from gpt.asm.targets import find_target

        target = find_target(self._arch)
        assert target
        self._tools = self._tools or Tools(None, hint=HINT)
        tool = self._tools.choose(VERSION, target)
        patches = self._assemble(tool, [text for text in texts if not _SEPARATE.search(text)], "-astoolspatch")
        found = {} if isinstance(patches, str) else {t: one for t, one in patches.items() if not isinstance(one, str)}
        rest = [text for text in texts if text not in found]
        functions = self._assemble(tool, rest, "-c")
        if isinstance(functions, str):
            raise GptError(f"{tool.name} doesn't compile a probe's code: {functions}")
        return [(found | functions)[text] for text in texts]

    def _assemble(self, tool: Tool, texts: list[str], mode: str) -> dict[str, Compiled | str] | str:
        """Compile texts in a mode of ptxas. Return what ptxas says if it doesn't compile them."""
        from gpt.asm.processes import Processes

        if not texts:
            return {}
        source = HEAD.format(*VERSION, self._arch)
        source += "".join(text.replace("NAME", f"body_{number}", 1) for number, text in enumerate(texts))
        with scratch_folder("gpt-sass-") as folder:
            folder.write("bodies.ptx", source.encode("ascii", "replace"))
            command = [tool.path, f"-arch={self._arch}", mode, "bodies.ptx", "-o", "bodies.cubin"]
            try:
                status, output = Processes(PATIENCE).run(command, folder.working)
            except TimeoutError:
                raise GptError(f"{tool.name} took over {PATIENCE} s for a probe's code") from None
            if status:
                return output.decode(errors="replace")[:300]
            cubin = CubinEditor(folder.read("bodies.cubin"))
        return {text: self._read(cubin, f".text.body_{n}".encode(), text) for n, text in enumerate(texts)}

    def _read(self, cubin: CubinEditor, name: bytes, text: str) -> Compiled | str:
        section = cubin.numbers[name]
        words = _mark_sizes(cubin, section, parse_words(bytes(cubin.content(section))))
        if isinstance(words, str):
            return words
        given = sum((3 if size == "64" else 1) << FIRST + int(offset) // 4 for size, offset in _GIVEN.findall(text))
        returned = int(found[1]) // 4 if (found := _RETURNED.search(text)) else 0
        maps = [FIRST + int(offset) // 4 for offset in _MAP.findall(text)]
        adds = int(found[1]) if (found := _ADDS.match(text)) else 0
        try:
            return make_compiled(words, self._table, given, returned, maps, adds, at_exit=AT_EXIT in text)
        except UnknownOpcodeError as error:
            return f"needs code that isn't understood: {error.fact}"


def make_compiled(
    words: list[int],
    table: Table,
    given: int,
    returned: int = 0,
    maps: Sequence[int] = (),
    adds: int = 0,
    *,
    at_exit: bool = False,
) -> Compiled | str:
    """Return the words of a function as a snippet, or a message that says why they can't be one. The registers in
    `given` are arguments, and the first `returned` ones from R4 on are results. Those in `maps` are the lower halves
    of addresses, which the snippet loads from the kernel's parameters. The snippet adds ADDEND and the `adds - 1`
    constants after it.
    """
    names = [table.opcode(word).name for word in words]
    if RET not in names:
        return "never ends"
    last = max(index for index, name in enumerate(names) if name == RET)
    words = shorten(words[: last + 1], table)
    for word in words[:-1]:
        name = table.opcode(word).name
        if name in FORBIDDEN - {"YIELD", RET} and not is_collective(word):
            return f"needs {name}, which a probe can't use"
        if table.decoder(word).masks(word).writes >> 1 & 1:
            return "needs more registers than a function has without a stack"
    inputs = _find_inputs(words, table, returned) & given
    loaded = {at: _load_address(at) for at in maps if inputs >> at & 3}
    body, wait = announce([*_announced(loaded.values(), words), *words[:-1]], table)
    body = reorder(body, table, at_exit=at_exit, returned=(1 << returned) - 1 << FIRST)
    body = space(await_results(await_reads(body, table), table), table)
    wait |= find_unawaited(body, table) & ~control_of(words[-1]).wait  # a path may not use an address
    plain = [word & ~CONTROL for word in body]
    constants = [bits(word, 32, 32) for word in body]
    if any(constants.count(ADDEND + number) != 1 for number in range(adds)):
        return "adds a constant in a way that isn't understood"
    return Compiled(
        Snippet(tuple(body), Registers(R=inputs & ~sum(3 << at for at in loaded))),
        table,
        control_of(words[-1]).wait | wait,
        tuple(index for index, word in enumerate(plain) if _is_size(word)),
        tuple((plain.index(word & ~CONTROL), at) for at, word in loaded.items()),
        tuple(constants.index(ADDEND + number) for number in range(adds)),
    )


def _find_inputs(words: list[int], table: Table, returned: int) -> int:
    """Return the general registers whose values a function needs: it reads them, or returns them where a branch or a
    guard leaves out the word that writes them.
    """
    end = len(words) - 1
    ended = [
        with_guard(make_branch(index, end, "split"), guard_of(word)) if table.opcode(word).name == RET else word
        for index, word in enumerate(words[:-1])
    ]
    ended += [*(glue.move(_NONE, FIRST + number) for number in range(returned)), words[-1] & ~0xFFF | 0x94D]
    code = Code(dump_words(ended), table)
    named = 0
    for masks in code.masks[:end]:
        named |= masks.reads | masks.writes
    return live_before(code, make_graph(code))[0] & named & (1 << _NONE) - 1


def _load_address(at: int) -> int:
    """Return the word that loads the address of a map. Until its offset is filled in, no other word is like it."""
    return glue.load_parameter(at, _NOWHERE + 8 * at)


def _announced(loads: Iterable[int], words: list[int]) -> list[int]:
    """Give loads a barrier, which no other word uses if there's one left."""
    used = {number for word in words for number in control_of(word)[2:4]}
    barrier = next((number for number in range(BARRIERS) if number not in used), BARRIERS - 1)
    return [with_change(word, write_barrier=barrier) for word in loads]


def _is_size(word: int) -> bool:
    return opcode_of(word) == UMOV and bits(word, 32, 32) == _UNKNOWN


def _mark_sizes(cubin: CubinEditor, section: int, words: list[int]) -> list[int] | str:
    """Return the words of a section, with _UNKNOWN in place of the size of constant bank 3. If there are other
    relocations, which a snippet can't have, return a message.
    """
    found = list(words)
    for number, header in enumerate(cubin.sections):
        if header["type"] != SHT_RELA or header["info"] != section:
            continue
        strings = bytes(cubin.content(int(cubin.sections["link"][cubin.table])))
        for entry in read_table(cubin.content(number), elftables.RELA.dtype):
            start = int(cubin.symbols["name"][entry["symbol"]])
            name = strings[start : strings.find(0, start)]
            index = int(entry["offset"]) // SIZE
            if name != CONSTANTS_SIZE or opcode_of(words[index]) != UMOV:
                return "needs an address that only linking gives"
            found[index] = with_bits(words[index], 32, 32, _UNKNOWN)
    return found
