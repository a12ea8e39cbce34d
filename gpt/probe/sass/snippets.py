"""Compile bodies (body.py) with ptxas, and find out what the resulting words need.

All bodies of a kernel that aren't cached are compiled in one run, each as a function. The words before the last RET are
the snippet. Without the RET, the word after the snippet has to take over the waits of the RET. waits.py adds the
waits that a function leaves to its caller.

If no lane of a warp saves, ptxas jumps over the predicated save with `@!P0 BRA.U`. For warps in which only some lanes
save, there's a second branch, `@!P0 BRA`, between BSSY and BSYNC. check.py refuses BRA.U, because nobody has measured
its exact meaning. The second branch is enough on its own, so the first one is replaced by a NOP.

Compiled words are cached in memory and in the user's cache, by a digest of their text. The package ships words for the
built-in probes under the same keys (shipped.py), so these need no ptxas. A body's text depends on the face, on the
values that the probe keeps, on the fields that the kernel leaves idle, and on everything that lowering writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from gpt.probe.sass.compiled import Compiled
from gpt.probe.sass.lowering import Lowerer
from gpt.probe.sass.shipped import Shipped
from gpt.probe.sass.waits import announce, await_reads, await_results, space
from gpt.sass.check_words import FORBIDDEN, NOP, is_collective
from gpt.sass.code import Code
from gpt.sass.graph import make_graph
from gpt.sass.live import live_before
from gpt.sass.masks import Registers
from gpt.sass.tables import Table, UnknownOpcodeError
from gpt.sass.words import SIZE, bits, control_of, dump_words, guard_of, opcode_of, parse_words, with_control
from gpt.sass.woven import Snippet

if TYPE_CHECKING:
    from gpt.asm.find import Tools

FORMAT = b"9"  # version of the cache's format
VERSION = 8, 0  # PTX version
HEAD = ".version {}.{}\n.target {}\n.address_size 64\n"
HINT = "probes whose code isn't part of the package need one; name it in GPT_PTXAS, or install it"
PATIENCE = 60  # seconds that compiling the bodies of a kernel may take
RET, UMOV = "RET", 0x882
CONSTANTS_SIZE = b".nv.ptx.const0.size"  # a symbol for isspacep: the size of the program's constants in bytes
_GIVEN = re.compile(r"\.b8 in\[(\d+)\]")


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
        return bytes(msgpack.packb([dump_words(snippet.words), snippet.inputs.R, found.wait, list(found.sized)]))

    def _load(self, data: bytes) -> Compiled | str:
        found = msgpack.unpackb(data)
        if isinstance(found, str):
            return found
        words, inputs, wait, sized = found
        return Compiled(Snippet(tuple(parse_words(words)), Registers(R=inputs)), self._table, wait, tuple(sized))

    def _run(self, texts: list[str]) -> list[Compiled | str]:
        from gpt.asm.find import Tools
        from gpt.asm.processes import Processes
        from gpt.asm.targets import find_target

        target = find_target(self._arch)
        assert target
        self._tools = self._tools or Tools(None, hint=HINT)
        tool = self._tools.choose(VERSION, target)
        source = HEAD.format(*VERSION, self._arch)
        source += "".join(text.replace("NAME", f"body_{number}", 1) for number, text in enumerate(texts))
        with scratch_folder("gpt-sass-") as folder:
            folder.write("bodies.ptx", source.encode("ascii", "replace"))
            command = [tool.path, f"-arch={self._arch}", "-c", "bodies.ptx", "-o", "bodies.cubin"]
            try:
                status, output = Processes(PATIENCE).run(command, folder.working)
            except TimeoutError:
                raise GptError(f"{tool.name} took over {PATIENCE} s for a probe's code") from None
            if status:
                raise GptError(f"{tool.name} doesn't compile a probe's code: {output.decode(errors='replace')[:300]}")
            cubin = CubinEditor(folder.read("bodies.cubin"))
        return [self._read(cubin, f".text.body_{number}".encode(), text) for number, text in enumerate(texts)]

    def _read(self, cubin: CubinEditor, name: bytes, text: str) -> Compiled | str:
        section = cubin.numbers[name]
        given = _GIVEN.search(text)
        words = parse_words(bytes(cubin.content(section)))
        sized = _find_sized(cubin, section, words)
        if isinstance(sized, str):
            return sized
        try:
            return make_compiled(words, self._table, int(given[1]) // 4 if given else 0, sized)
        except UnknownOpcodeError as error:
            return f"needs code that isn't understood: {error.fact}"


def make_compiled(words: list[int], table: Table, given: int, sized: tuple[int, ...] = ()) -> Compiled | str:
    """Return the words of a function as a snippet, or a message that says why they can't be one. The first `given`
    registers from R4 on are arguments.
    """
    names = [table.opcode(word).name for word in words]
    if RET not in names:
        return "never ends"
    last = max(index for index, name in enumerate(names) if name == RET)
    words = list(words[: last + 1])
    for index in _find_shortcuts(Code(dump_words(words), table)):
        words[index] = with_control(NOP, control_of(words[index])._replace(reuse=0))
    for word, name in zip(words[:-1], names, strict=False):
        if name in FORBIDDEN - {"YIELD", RET} and not is_collective(word):
            return f"needs {name}, which a probe can't use"
        if table.decoder(word).masks(word).writes >> 1 & 1:
            return "needs more registers than a function has without a stack"
    ended = [*words[:-1], words[-1] & ~(0xFFF) | 0x94D]
    code = Code(dump_words(ended), table)
    inputs = Registers(R=live_before(code, make_graph(code))[0] & ((1 << given) - 1) << 4)
    wait = control_of(words[-1]).wait
    body, extra = announce(words[:-1], table)
    body = space(await_results(await_reads(body, table), table), table)
    return Compiled(Snippet(tuple(body), inputs), table, wait | extra, sized)


def _find_shortcuts(code: Code) -> Iterator[int]:
    """Yield each BRA.U that only saves time, because a BRA with the same guard follows, between a BSSY and the BSYNC
    before its target.

    No instruction in between may access memory or change the guard. Then it does no harm if lanes whose guard is true
    reach the second branch. That happens anyway if the guard is false in another lane.
    """
    for index, one in enumerate(code):
        if one.name != "BRA" or bits(one.word, 32, 2) != 1 or bits(one.word, 91, 1) or one.target is None:
            continue
        end, opened = one.target // SIZE, False
        for other in (code[number] for number in range(index + 1, min(end, len(code)))):
            if other.name == "BSSY":
                opened = other.guard.always and other.target == one.target
            elif other.name == "BRA":
                meets = other.target == one.target - SIZE and code[end - 1].name == "BSYNC"
                if opened and meets and guard_of(other.word) == guard_of(one.word):
                    yield index
                break
            elif other.memory not in (None, "constant") or other.masks.writes & one.masks.reads:
                break


def _find_sized(cubin: CubinEditor, section: int, words: list[int]) -> tuple[int, ...] | str:
    """Return the words that contain the size of constant bank 0, or a message if there are other relocations, which a
    snippet can't have.
    """
    found = []
    for number, header in enumerate(cubin.sections):
        if header["type"] != SHT_RELA or header["info"] != section:
            continue
        strings = bytes(cubin.content(int(cubin.sections["link"][cubin.table])))
        for entry in read_table(cubin.content(number), elftables.RELA.dtype):
            start = int(cubin.symbols["name"][entry["symbol"]])
            name = strings[start : strings.find(0, start)]
            index = int(entry["offset"]) // 16
            if name != CONSTANTS_SIZE or opcode_of(words[index]) != UMOV:
                return "needs an address that only linking gives"
            found.append(index)
    return tuple(found)
