"""Ask nvdisasm what an instruction word reads and writes.

`nvdisasm -plr` prints a column per register next to every instruction: `^` written, `v` read, `x` both, `:` live. It
does so only for cubins, so this module builds one with a section per word, which contains the word and an EXIT, so that
no word is unreachable or affects another. A driver wouldn't load that cubin, but nvdisasm needs only its code.

`nvdisasm -b` takes bare words and prints only text. It reports the address of each word that it can't decode, and takes
20 microseconds per word where `-plr` takes 500. So every word goes through `-b` first, and of the words with the same
opcode whose text differs only in constants, one goes through `-plr`; `test_derive.py` checks on random words that this
changes nothing. nvdisasm takes half a second to start, so ask for thousands of words at once.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.base.scratch import scratch_folder
from gpt.sass.words import CONTROL, SIZE, dump_words

EXIT = 0x000FEA0003800000_000000000000794D
STALL = 0x000FE200 << 96 & CONTROL  # no barrier set, none awaited
BATCH = 16000  # words per run
FILES = {"GPR": "R", "UGPR": "UR", "PRED": "P", "UPRED": "UP"}

_REFUSED = re.compile(r"at address 0x([0-9a-f]+)")
_RAW = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_JUMP = re.compile(r"((?:@\S+ +)?(?:BRA|CALL|JMP|RET|BSSY|WARPSYNC|LEPC|BRX|JMX)\b(?:.* )?)(-?0x[0-9a-f]+)")
_DISTANCE = re.compile(r"\.([-+]0x[0-9a-f]+)$")
_CONSTANT = re.compile(r"(?<![\w.])-?(?:0x[0-9a-f]+|\d[\d.]*(?:e[-+]\d+)?)(?!\w)")
_WORD = re.compile(r"\s*/\* 0x[0-9a-f]{16} \*/")


class Effect(NamedTuple):
    """The text of a word, and the registers that it writes and reads, as one bit mask per register file."""

    text: str
    writes: dict[str, int]
    reads: dict[str, int]


class Oracle:
    """nvdisasm for one architecture. Answers are cached."""

    def __init__(self, nvdisasm: str, arch: str, header: bytes) -> None:
        """Prepare to run nvdisasm; `header` is the first 64 bytes of any cubin for that architecture."""
        self.command = nvdisasm
        self.arch = arch
        self._header = header
        self._texts: dict[int, str | None] = {}
        self._known: dict[str, tuple[dict[str, int], dict[str, int]]] = {}  # by opcode and text without constants

    def texts(self, words: Sequence[int]) -> list[str | None]:
        """Return the text of each word, None if it can't be decoded. A jump's distance is relative to its own place."""
        keys = [word & ~CONTROL | STALL for word in words]
        new = [key for key in dict.fromkeys(keys) if key not in self._texts]
        for start in range(0, len(new), BATCH):
            self._read_texts(new[start : start + BATCH])
        return [self._texts[key] for key in keys]

    def _read_texts(self, words: list[int]) -> None:
        self._texts.update(dict.fromkeys(words))
        while words:
            done = self._start(dump_words(words), "-b", self.arch.replace("sm_", "SM"))
            refused = {int(found, 16) // SIZE for found in _REFUSED.findall(done.stderr)}
            if not refused:
                if done.returncode:
                    raise GptError(f"fails: {done.stderr.strip()[:300]}", self.command)
                for at, text in _RAW.findall(done.stdout):  # a few words are silently left out
                    self._texts[words[int(at, 16) // SIZE]] = _with_distance(text, int(at, 16))
                return
            words = [word for index, word in enumerate(words) if index not in refused]

    def ask(self, words: Sequence[int], each: bool = False) -> list[Effect | None]:
        """Return what each word does, or None if nvdisasm rejects it. The control part doesn't matter.

        With `each`, words with the same text are listed individually: text may leave out an operand.
        """
        texts = self.texts(words)
        kinds = [
            None if text is None or _leads_away(text) else f"{word & ~CONTROL:x}" if each else _kind(word, text)
            for word, text in zip(words, texts, strict=True)
        ]
        new = {
            kind: word & ~CONTROL | STALL
            for kind, word in zip(kinds, words, strict=True)
            if kind is not None and kind not in self._known
        }
        left = list(new)
        for start in range(0, len(left), BATCH):
            batch = left[start : start + BATCH]
            listing = self._run(self._cubin([new[kind] for kind in batch]), "-plr", "-lrm", "narrow", "-c", "-hex")
            self._known.update(zip(batch, _iter_effects(listing), strict=True))
        return [
            None if kind is None or text is None else Effect(text, *self._known[kind])
            for kind, text in zip(kinds, texts, strict=True)
        ]

    @property
    def asked(self) -> tuple[int, int]:
        """Return the number of words decoded, and of words listed with registers."""
        return len(self._texts), len(self._known)

    def _run(self, data: bytes, *options: str) -> str:
        done = self._start(data, *options)
        if done.returncode:
            raise GptError(f"fails: {done.stderr.strip()[:300]}", self.command)
        return done.stdout

    def _start(self, data: bytes, *options: str) -> subprocess.CompletedProcess[str]:
        with scratch_folder("gpt-derive-") as folder:
            folder.write("words", data)
            command = [self.command, *options, "words"]
            return subprocess.run(
                command, cwd=folder.working, capture_output=True, text=True, errors="replace", check=False
            )

    def _cubin(self, words: Sequence[int]) -> bytes:
        """Return an ELF file with a section and a function for each word."""
        names, functions = b"\0.shstrtab\0.strtab\0.symtab\0", b"\0"
        symbols = bytearray(24)
        body = bytearray()
        sections = []
        for index, word in enumerate(words):
            code = dump_words([word, EXIT])
            sections.append((len(names), 1, 6, 0, 64 + len(body), len(code), 3, index + 1 | 16 << 24, 16, 0))
            symbols += struct.pack("<IBBHQQ", len(functions), 0x12, 0x10, index + 4, 0, len(code))
            names += b".text.k%d\0" % index
            functions += b"k%d\0" % index
            body += code
        tables = []
        for name, kind, data, link, info, size in (
            (1, 3, names, 0, 0, 0),
            (11, 3, functions, 0, 0, 0),
            (19, 2, bytes(symbols), 2, 1, 24),
        ):
            body += bytes(-len(body) % 8)
            tables.append((name, kind, 0, 0, 64 + len(body), len(data), link, info, 8, size))
            body += data
        body += bytes(-len(body) % 8)
        headers = [(0,) * 10, *tables, *sections]
        head = bytearray(self._header)
        struct.pack_into("<QQ", head, 32, 0, 64 + len(body))
        struct.pack_into("<HHHHHH", head, 52, 64, 56, 0, 64, len(headers), 1)
        return bytes(head + body + b"".join(struct.pack("<IIQQQQIIQQ", *header) for header in headers))


def _with_distance(text: str, place: int) -> str:
    """Replace the target of a jump with its distance: `BRA 0x40` at 0x20 becomes `BRA .+0x20`."""
    found = _JUMP.fullmatch(text)
    if not found:
        return text
    return f"{found[1]}.{int(found[2], 16) - place:+#x}"


def _kind(word: int, text: str) -> str:
    """Return a word's opcode and its text without constants.

    Another opcode may have an operand that no text shows. A constant after an address says which registers are accessed
    (`LDG.E.ENL2.256 R16, R8, desc[UR4][R40.64], 0xfe`), so it stays.
    """
    address, bracket, rest = text.rpartition("]")
    return f"{word & 0xFFF:03x} {_CONSTANT.sub('#', address)}{bracket}{rest if bracket else _CONSTANT.sub('#', rest)}"


def _leads_away(text: str) -> bool:
    """Return True for a branch out of a section of two words, which nvdisasm's liveness analysis rejects."""
    found = _DISTANCE.search(text)
    return found is not None and "BRA" in text and int(found[1], 16) not in (0, SIZE)


def _iter_effects(listing: str) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield the writes and reads of the first word of each section in a listing."""
    columns: list[tuple[str, int]] = []  # register file and column of its register 0, in this section
    rows = -1
    names: list[str] = []
    for line in listing.splitlines():
        if line.startswith("//-----"):
            rows, names, columns = 0, [], []
            continue
        if rows < 0:
            continue
        at = line.find("// |")
        if at < 0:
            continue
        if not columns:
            parts = line[at + 4 :].rstrip("|").split("|")
            if not names:
                names = [part.strip() for part in parts]
            elif "#" in line[at:]:
                for name, found in zip(names, re.finditer("#", line[at:]), strict=True):
                    columns.append((FILES[name], at + found.start() + 2))
        elif _WORD.match(line[:at]):
            rows += 1
            if rows == 1:
                yield _read_row(line, columns)


def _read_row(line: str, columns: list[tuple[str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    writes: dict[str, int] = {}
    reads: dict[str, int] = {}
    for name, start in columns:
        written = read = 0
        for index, mark in enumerate(line[start : line.index("|", start)]):
            if mark in "^x":
                written |= 1 << index
            if mark in "vx":
                read |= 1 << index
            elif mark not in " :^":
                raise GptError(f"unexpected mark {mark!r} in {line.strip()!r}", "nvdisasm")
        if written:
            writes[name] = written
        if read:
            reads[name] = read
    return writes, reads
