"""A small assembler for the experiments of sass_risks.py; it also finds the places in the cubin where code can be
changed.

`WORDS` has one instruction of each kind: the word that ptxas 13.0 wrote for one of our kernels, with register numbers
zeroed, and the text that nvdisasm prints for it. `op` changes its fields. Code is a list of instructions and labels.

Trampolines go where the kernel never executes: each kernel of sass_risks.cu has room for them before and after its own
code. So no section grows, and the only other change to the file is the kernel's register count.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpt.sass.words import bits, dump_words, parse_words, with_bits, with_target

SITE, ROOM = 0x12340, 0x54000  # offsets of the loads and stores that mark the site and the room
RZ, PT, URZ = 255, 7, 63
LANEID, TID, LTMASK, CLOCK = 0x00, 0x21, 0x39, 0x50  # special registers
LDG, STG, HGMMA = 0x981, 0x986, 0xDF0  # opcodes

WORDS = {
    "ANDI": ("LOP3.LUT R0, R0, 0x0, RZ, 0xc0, !PT", 0x0000000000007812, 0x004FC800078EC0FF),
    "AND": ("LOP3.LUT R0, R0, R0, RZ, 0xc0, !PT", 0x0000000000007212, 0x004FC800078EC0FF),
    "ATOMG": ("ATOMG.E.ADD.STRONG.GPU PT, R0, desc[UR0][R0.64], R0", 0x00000000000079A8, 0x000EA400081EE1C0),
    "BAR": ("BAR.SYNC.DEFER_BLOCKING 0x0", 0x0000000000007B1D, 0x000FF00000010000),
    "BMOV.CLEAR": ("BMOV.32.CLEAR R0, B0", 0x0000000000007355, 0x001E2A0000100000),
    "BMOV.SET": ("BMOV.32 B0, R0", 0x0000000000007356, 0x0001EA0000000000),
    "BRA": ("BRA 0x10", 0x0000000000007947, 0x000FEA0003800000),
    "BRA.DIV": ("BRA.DIV UR0, 0x10", 0x0000000200007947, 0x000FEA000B800000),
    "BSSY": ("BSSY B0, 0x10", 0x0000000000007945, 0x000FE20003800000),
    "BSYNC": ("BSYNC B0", 0x0000000000007941, 0x000FEA0003800000),
    "CALL": ("CALL.REL.NOINC 0x10", 0x0000000000007944, 0x000FEA0003C00000),
    "CS2R": ("CS2R.32 R0, SR_CLOCKLO", 0x0000000000007805, 0x001FCA0000005000),
    "DMMA": ("DMMA.8x8x4 R0, R0, R0, R0", 0x000000000000723F, 0x004EDE0000000000),
    "ELECT": ("ELECT P0, URZ, PT", 0x00000000003F782F, 0x000FE20003800000),
    "ENDCOLLECTIVE": ("ENDCOLLECTIVE", 0x000000000000791B, 0x001FE20003800000),
    "FADD": ("FADD R0, R0, R0", 0x0000000000007221, 0x000FE20000000000),
    "HMMA": ("HMMA.16816.F32 R0, R0, R0, R0", 0x000000000000723C, 0x004FDE0000001800),
    "IADD": ("IADD3 R0, R0, R0, RZ", 0x0000000000007210, 0x000FCA0007FFE0FF),
    "IADDI": ("IADD3 R0, R0, 0x0, RZ", 0x0000000000007810, 0x000FE20007FFE0FF),
    "IMADI": ("IMAD.MOV R0, R0, 0x0, R0", 0x0000000000007824, 0x000FE200078E0200),
    "IMMA": ("IMMA.16832.S8.S8 R0, R0.ROW, R0.COL, R0", 0x0000000000007237, 0x010FE40000405C00),
    "LDC": ("LDC R0, c[0x0][RZ]", 0x00000000FF007B82, 0x000E220000000800),
    "LDG": ("LDG.E R0, desc[UR0][R0.64]", 0x0000000000007981, 0x000EA2000C1E1900),
    "LDS": ("LDS R0, [R0]", 0x0000000000007984, 0x0001280000000800),
    "MATCH": ("MATCH.ANY R0, R0", 0x00000000000073A1, 0x000E2600000E8000),
    "MEMBAR": ("MEMBAR.SC.GPU", 0x0000000000007992, 0x000FEC0000002000),
    "MOV": ("MOV R0, R0", 0x0000000000007202, 0x000FCA0000000F00),
    "MOVI": ("IMAD.MOV.U32 R0, RZ, RZ, 0x0", 0x00000000FF007424, 0x000FE200078E00FF),
    "MOVUR": ("IMAD.U32 R0, RZ, RZ, UR0", 0x00000000FF007E24, 0x000FE2000F8E00FF),
    "MUFU": ("MUFU.RCP R0, R0", 0x0000000000007308, 0x000E240000001000),
    "NANOSLEEP": ("NANOSLEEP 0x0", 0x000000000000795D, 0x000FEA0003800000),
    "NOP": ("NOP", 0x0000000000007918, 0x000FC00000000000),
    "POPC": ("POPC R0, R0", 0x0000000000007309, 0x000E620000000000),
    "R2UR": ("R2UR UR0, R0", 0x00000000000072CA, 0x001FE200000E0000),
    "REDUX": ("REDUX.SUM.S32 UR0, R0", 0x00000000000073C4, 0x004E24000000C200),
    "RET": ("RET.REL.NODEC R0 0x10", 0x0000000000007950, 0x007FEA0003C00000),
    "S2R": ("S2R R0, SR_LANEID", 0x0000000000007919, 0x000E220000000000),
    "SEL": ("SEL R0, R0, R0, P0", 0x0000000000007207, 0x000FE20000000000),
    "SETNE": ("ISETP.NE.AND P0, PT, R0, R0, PT", 0x000000000000720C, 0x004FDA0003F05270),
    "SHFL": ("SHFL.BFLY PT, R0, R0, 0x1, 0x1f", 0x0C201F0000007F89, 0x000E2200000E0000),
    "STG": ("STG.E desc[UR0][R0.64], R0", 0x0000000000007986, 0x0003E8000C101900),
    "STS": ("STS [R0], R0", 0x0000000000007388, 0x010FE20000000800),
    "UMOVI": ("UMOV UR0, 0x0", 0x0000000000007882, 0x000FE20000000000),
    "USEL": ("USEL UR0, UR0, UR0, UP0", 0x0000000000007287, 0x000FE40008000000),
    "USETNE": ("UISETP.NE.U32.AND UP0, UPT, UR0, UR0, UPT", 0x000000000000728C, 0x000FE2000BF05070),
    "VOTE.ANY": ("VOTE.ANY R0, PT, PT", 0x0000000000007806, 0x000FE200038E0100),
    "VOTEU.ANY": ("VOTEU.ANY UR0, UPT, PT", 0x0000000000007886, 0x000FE200038E0100),
    "WARPSYNC": ("WARPSYNC R0", 0x0000000000007348, 0x000FEA0003800000),
    "WARPSYNC.ALL": ("WARPSYNC.ALL", 0x0000000000007948, 0x000FEA0003800000),
    "WARPSYNC.COLLECTIVE": ("WARPSYNC.COLLECTIVE R0, 0x10", 0x0000000000007348, 0x001FEA0003C00000),
    "YIELD": ("YIELD", 0x0000000000007946, 0x000FEA0003800000),
}

FIELDS = {  # name: first bit, bits
    "guard": (12, 4),
    "d": (16, 8),
    "ud": (16, 6),
    "barrier": (16, 4),  # in BSSY and BSYNC
    "a": (24, 8),
    "ua": (24, 6),
    "saved": (24, 4),  # in BMOV
    "b": (32, 8),
    "ub": (32, 6),  # the descriptor of a load, too
    "imm": (32, 32),
    "offset": (40, 24),
    "c": (64, 8),
    "desc_store": (64, 6),  # the descriptor of a store or an atomic
    "special": (72, 8),
    "p": (81, 3),
    "q": (87, 3),  # the predicate that's read
    "stall": (105, 4),
    "switch": (109, 1),  # the scheduler may prefer another warp; must be 0 where the stall is 12 or more
    "wb": (110, 3),
    "rb": (113, 3),
    "wait": (116, 6),
    "reuse": (122, 4),
}


def with_field(word: int, name: str, value: int) -> int:
    """Return the word with a new value in a field. Bits that don't fit are dropped."""
    first, width = FIELDS[name]
    return with_bits(word, first, width, value & (1 << width) - 1)


def field_of(word: int, name: str) -> int:
    """Return the value of a field."""
    return bits(word, *FIELDS[name])


@dataclass
class Op:
    """An instruction. A branch has the label of its target, and an instruction whose immediate is an address has that
    label.
    """

    name: str
    word: int
    to: str | None = None
    address: str | None = None


Code = list[Op | int | str]  # instructions, raw words, labels


def op(name: str, to: str | None = None, address: str | None = None, **fields: int) -> Op:
    """Return an instruction that waits for nothing, sets no scoreboard, and stalls long enough for everything."""
    _, low, high = WORDS[name]
    word = low | high << 64
    for key, value in ({"stall": 15, "switch": 0, "wb": 7, "rb": 7, "wait": 0, "reuse": 0} | fields).items():
        word = with_field(word, key, value)
    return Op(name, word, to, address)


def assemble(code: Code, start: int, outside: dict[str, int]) -> list[int]:
    """Encode code that starts at the address `start`. `outside` has the addresses of labels elsewhere."""
    labels, at = {"kernel": 0, **outside}, start
    for item in code:
        if isinstance(item, str):
            labels[item] = at
        else:
            at += 16
    words: list[int] = []
    for item in code:
        if isinstance(item, int):
            words.append(item)
        elif isinstance(item, Op):
            word, here = item.word, start + 16 * len(words)
            if item.to is not None:
                word = with_target(word, "imm32" if item.name == "BSSY" else "split", here, labels[item.to])
            if item.address is not None:
                word = with_field(word, "imm", labels[item.address])
            words.append(word)
    return words


@dataclass
class Kernel:
    """A kernel of the cubin: its words, and the places that experiments may change."""

    name: str
    words: list[int]
    text: str
    offset: int  # where the code begins in the file
    registers: int  # register count, and its offset in the file
    registers_at: int
    sites: list[int] = field(default_factory=list)
    rooms: list[tuple[int, int]] = field(default_factory=list)  # first word and number of words

    def free(self, prefix: str, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of the registers (P, UR, B) that the kernel doesn't use."""
        named = {int(n) for n in re.findall(rf"\b{prefix}(\d+)\b", self.text)}
        return [n for n in numbers if n not in named]


def sections(image: bytes) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each of a cubin's sections, by name."""
    (start,) = struct.unpack_from("<Q", image, 40)
    count, names = struct.unpack_from("<HH", image, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + 64 * k) for k in range(count)]
    strings = headers[names][4]
    return {image[strings + h[0] : image.index(0, strings + h[0])].decode(): (h[4], h[5]) for h in headers}


def register_counts(image: bytes) -> dict[str, int]:
    """Return the file offset of each kernel's register count, which is in EIATTR_REGCOUNT of .nv.info."""
    found = sections(image)
    symbols, strings = found[".symtab"][0], found[".strtab"][0]
    at, size = found[".nv.info"]
    counts, end = {}, at + size
    while at < end:
        form, kind, length = struct.unpack_from("<BBH", image, at)
        if form == 4 and kind == 0x2F:
            (symbol,) = struct.unpack_from("<I", image, at + 4)
            (name,) = struct.unpack_from("<I", image, symbols + 24 * symbol)
            counts[image[strings + name : image.index(0, strings + name)].decode()] = at + 8
        at += 4 + (length + 3 & ~3 if form == 4 else 0)
    return counts


def read_kernels(image: bytes, listing: str) -> dict[str, Kernel]:
    """Return the kernels of a cubin; `listing` is the output of `nvdisasm -c`."""
    counts = register_counts(image)
    texts = {part.split(None, 1)[0]: part for part in listing.split("//--------------------- .text.")[1:]}
    kernels = {}
    for section, (offset, size) in sections(image).items():
        name = section.removeprefix(".text.")
        if name == section or name not in counts:
            continue
        words = parse_words(image[offset : offset + size])
        (count,) = struct.unpack_from("<I", image, counts[name])
        kernel = kernels[name] = Kernel(name, words, texts[name], offset, count, counts[name])
        run = 0
        for at, word in enumerate([*words, 0]):
            opcode = word & 0xFFF
            if opcode == STG and field_of(word, "offset") & ~0xFFF == ROOM:
                run += 1
                continue
            if run > 8:
                kernel.rooms.append((at - run, run))
            run = 0
            if opcode == LDG and field_of(word, "offset") == SITE and name != "group":
                kernel.sites.append(at)
            elif opcode == HGMMA:  # in the kernel `group`, whose load comes before
                kernel.sites.append(at + 1)
    return kernels


@dataclass
class Names:
    """Registers for an experiment: `r` are additional ones; the kernel doesn't use `p`, `u` and `b`; `d` and `a` are
    the site's operands.

    `word` is what stood there.
    """

    r: list[int]
    p: list[int]
    u: list[int]
    b: list[int]
    d: int
    a: int
    word: int


def names_at(kernel: Kernel, site: int, registers: int) -> Names:
    """Return registers for an experiment at a site of a kernel that gets `registers` of them."""
    before = kernel.words[site - 1]
    word = before if before & 0xFFF == HGMMA else kernel.words[site]
    r = list(range(kernel.registers - 2, registers - 2))  # the hardware uses the last two
    p, u, b = (kernel.free(*x) for x in (("P", range(7)), ("UR", range(40, 60)), ("B", range(15, -1, -1))))
    return Names(r, p, u, b, field_of(word, "d"), field_of(word, "a"), kernel.words[site])


def weave(image: bytes, kernel: Kernel, parts: list[tuple[int, Code]], place: int, registers: int) -> bytes:
    """Return the cubin with trampolines for some sites of a kernel, given as site numbers with code, in one of its
    rooms.

    The code replaces the instruction at the site; the branch back is added. Raises ValueError if it doesn't fit.
    """
    words = list(kernel.words)
    at, size = kernel.rooms[place]
    end = at + size
    for number, code in parts:
        site = kernel.sites[number]
        body = assemble([*code, op("BRA", "back", stall=5, switch=1)], 16 * at, {"back": 16 * (site + 1)})
        branch = op("BRA", "body", stall=5, switch=1, wait=field_of(words[site], "wait"))
        words[site] = assemble([branch], 16 * site, {"body": 16 * at})[0]
        words[site - 1] = with_field(words[site - 1], "reuse", 0)
        words[at : at + len(body)] = body
        at += len(body)
    if at > end:
        raise ValueError(f"{at - end} words too many for the room")
    result = bytearray(image)
    result[kernel.offset : kernel.offset + 16 * len(words)] = dump_words(words)
    struct.pack_into("<I", result, kernel.registers_at, registers)
    return bytes(result)
