"""Shared by tests of the checker: run it, and change words of kernels."""

from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.check import Version, check
from gpt.sass.code import Code
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.tables import table_of
from gpt.sass.words import dump_words, with_bits
from tests.sass.corpus import find_places
from tests.sass.weaver import ARCH, PLAIN, STL

TABLE = table_of(ARCH)


def with_words(version, words):
    """Return a version of the kernel with these words."""
    kernel = version.kernel
    return Version(
        Kernel(kernel.name, Code(dump_words(words), TABLE), kernel.registers, kernel.jump_tables), version.facts
    )


def rules(woven, new=None, declaration=None):
    """Return the rules that a woven kernel breaks."""
    found = check(woven.original, new or woven.new, declaration or woven.declaration)
    return {finding.rule for finding in found}


def site(image, name, opcode, number=0):
    """Return a kernel that has an instruction with this opcode, and the instruction's index."""
    kernel = read_kernel(CubinEditor(image), name, TABLE)
    return kernel, [index for index in find_places(kernel) if kernel.code[index].name == opcode][number]


def instruction(word):
    """Return a word as an instruction."""
    return Code(dump_words([word | PLAIN]), TABLE)[0]


def stored(base, register, offset):
    """Return a store of a register to the stack, or a load from it."""
    word = with_bits(base, 40, 24, offset % (1 << 24))
    return instruction(word | register << (32 if base == STL else 16))
