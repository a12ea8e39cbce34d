"""Damaged cubins are edited or rejected, with a plain message, and in no more time than intact ones."""

import random
import struct
import time

import pytest

from gpt.base.errors import GptError
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import NOP, KernelEditor
from gpt.formats.kernel_params import add_parameter
from gpt.formats.nvinfo import REGISTERS
from tests.formats import forge
from tests.formats.kernels_to_edit import compiled
from tests.fuzz.mutate import NUMBERS, WIDTHS
from tests.fuzz.readers import edit_cubin
from tests.tiers import examples

FIELDS = {"name": 0, "type": 4, "flags": 8, "offset": 24, "size": 32, "link": 40, "info": 44, "align": 48}


def with_field(section, field, value, form="<Q"):
    """Return a cubin with another value in a field of a section header, or of the ELF header if it's a number."""
    data = bytearray(compiled("sm_90"))
    cubin = CubinEditor(bytes(data))
    (shoff,) = struct.unpack_from("<Q", data, 40)
    place = field if section is None else shoff + 64 * cubin.numbers[section] + FIELDS[field]
    struct.pack_into(form, data, place, value)
    return bytes(data)


def content_of(section):
    cubin = CubinEditor(compiled("sm_90"))
    return int(cubin.original["offset"][cubin.numbers[section]])


def number_of(section):
    return CubinEditor(compiled("sm_90")).numbers[section]


def with_content(section, at, form, value):
    """Return a cubin of ours with another value in a section's contents."""
    data = bytearray(compiled("sm_90"))
    struct.pack_into(form, data, content_of(section) + at, value)
    return bytes(data)


REFUSED = {
    "sections overlap": lambda: with_field(b".text.one", "offset", content_of(b".text.two") + 16),
    "two sections share their bytes, and one of them changes": lambda: with_field(
        b".text.one", "offset", content_of(b".text.two")
    ),
    "a section ends beyond the cubin": lambda: with_field(b".text.one", "size", 1 << 63),
    "cubin: section headers beyond its end": lambda: with_field(None, 60, 0xFFFF, "<H"),
    "unknown program headers": lambda: with_field(None, 54, 55, "<H"),
    "program headers end beyond the cubin": lambda: with_field(None, 32, 1 << 40),
    "an alignment of 4294967296": lambda: with_field(b".text.one", "align", 1 << 32),
    "a symbol table without names": lambda: with_field(b".symtab", "link", 0xFFFF, "<I"),
    "a name without an end": lambda: with_field(b".symtab", "link", number_of(b".text.one"), "<I"),
    "0 symbol tables": lambda: with_field(b".symtab", "type", 1, "<I"),
    "2 symbol tables": lambda: with_field(b".strtab", "type", 2, "<I"),
    "the section names are missing": lambda: with_field(None, 62, 0xFFF0, "<H"),
    "a table ends within an entry": lambda: with_field(b".symtab", "size", 25),
    "a kernel without attributes": lambda: with_field(b".nv.info.one", "info", 1, "<I"),
    "a kernel without a constant bank": lambda: with_field(b".nv.constant0.one", "info", 1, "<I"),
    "a kernel lies outside the code": lambda: with_field(b".text.one", "flags", 2),
    "code of 383 bytes": lambda: with_field(b".text.one", "size", 383),
    "cubin: .nv.info ends within an entry": lambda: with_content(b".nv.info.one", 2, "<H", 0xFFFF),
    "536 bytes of constant bank, but 8 of parameters at 0x211": lambda: with_content(b".nv.info.one", 56, "<H", 0x211),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_damaged_cubins_are_refused(why):
    with pytest.raises(GptError) as caught:
        kernel = KernelEditor(CubinEditor(REFUSED[why]()), "one")
        kernel.insert(0, NOP)
        add_parameter(kernel)
        kernel.cubin.build()
    assert caught.value.fact == why


def test_every_field_of_every_table():
    """With random numbers in headers and tables, the result is read by another reader, or the cubin is rejected."""
    rng, built, refused = random.Random(1), 0, 0
    for _ in range(examples(2000)):
        data = bytearray(compiled(rng.choice(("sm_80", "sm_90", "sm_100"))))
        cubin = CubinEditor(bytes(data))
        (shoff,) = struct.unpack_from("<Q", data, 40)
        for _ in range(rng.choice((1, 1, 2, 3))):
            number = rng.randrange(1, len(cubin.original))
            offset, size = (int(cubin.original[field][number]) for field in ("offset", "size"))
            width = rng.choice((4, 8))
            is_table = cubin.in_file[number] and not cubin.original["flags"][number] & 2 and size >= width
            place = shoff + 64 * number + rng.choice(list(FIELDS.values()))
            if is_table and rng.random() < 0.5:
                place = offset + rng.randrange(size - width + 1) // 4 * 4
            value = rng.choice((rng.choice(NUMBERS), int.from_bytes(data[place : place + width], "little") + 8))
            struct.pack_into(WIDTHS[width], data, place, value % (1 << 8 * width))
        try:
            edit_cubin(bytes(data))
            built += 1
        except GptError as error:
            assert error.fact
            refused += 1
    assert min(built, refused) > examples(2000) // 10


def test_many_sections_in_one_place_take_no_time():
    count = 60_000
    body = bytes(1 << 20)
    head = forge.elf_header(shoff=64 + len(body), shnum=count, shstrndx=1, machine=190, type_=2, osabi=0x33)
    sections = [forge.section(0, 0), *(forge.section(0, 1, offset=64, size=len(body)) for _ in range(count - 1))]
    begin = time.process_time()
    cubin = CubinEditor(head + body + b"".join(sections))
    assert cubin.build() == cubin.data
    assert time.process_time() - begin < 10


def test_kernels_in_one_section_are_refused():
    """Each would be decoded on its own: 5,000 kernels with a megabyte of code would take an hour."""
    cubin = CubinEditor(compiled("sm_90"))
    one = cubin.symbols[cubin.kernels[b"one"]].tobytes()
    cubin.replace(cubin.table, bytes(cubin.content(cubin.table)) + one * 1000)
    with pytest.raises(GptError, match="kernels share their bytes"):
        _ = CubinEditor(cubin.build()).kernels


def test_kernels_whose_sections_are_in_one_place_are_refused():
    body = bytes(1 << 17)
    end = 64 + len(body)
    head = forge.elf_header(shoff=end + 24, shnum=6, shstrndx=1, machine=190, type_=2, osabi=0x33)
    sections = [forge.section(0, 0), *(forge.section(0, 1, offset=64, size=len(body)) for _ in range(4))]
    symbols = forge.section(0, 2, offset=end, size=24, link=1)
    with pytest.raises(GptError, match="kernels share their bytes"):
        _ = CubinEditor(head + body + bytes(24) + b"".join(sections) + symbols).kernels


def test_an_impossible_number_of_registers():
    cubin = CubinEditor(compiled("sm_90"))
    cubin.write_pair(REGISTERS, cubin.kernels[b"one"], 256)
    with pytest.raises(GptError, match="256 registers"):
        _ = KernelEditor(cubin, "one").registers


def test_names_that_share_their_bytes_are_refused():
    count = 60_000
    names = b"\0" + b"a" * 1_000_000 + b"\0"
    head = forge.elf_header(shoff=64, shnum=count, shstrndx=1, machine=190, type_=2, osabi=0x33)
    table = forge.section(0, 3, offset=64 + 64 * count, size=len(names))
    others = b"".join(forge.section(1 + number, 8) for number in range(count - 2))
    cubin = CubinEditor(head + forge.section(0, 0) + table + others + names)
    with pytest.raises(GptError, match="names overlap"):
        cubin.numbers.get(b"x")
