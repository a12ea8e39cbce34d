"""The committed tables and facts match the installed ptxas and nvdisasm."""

import random
import re
from functools import cache

import pytest

from gpt.sass.arch import ARCHS
from gpt.sass.derive.__main__ import COMPILED_AS, TABLES, derive, find_tools
from gpt.sass.derive.facts import find_facts, find_highest_uniform
from gpt.sass.derive.fields import FIRST as FIRST_BIT
from gpt.sass.derive.fields import LAST as LAST_BIT
from gpt.sass.derive.fields import find_fields, registers_of
from gpt.sass.derive.kernels import compile_ptx, iter_modules, iter_variations
from gpt.sass.derive.oracle import Oracle
from gpt.sass.derive.table import Derivation, iter_code
from gpt.sass.tables import Registers, table_of
from gpt.sass.words import CONTROL, target_of
from tests.tiers import FULL, every, full

FIRST = [arch if arch == "sm_90" else full(arch) for arch in ARCHS]
SIZES = {"R": 8, "UR": 6, "P": 3, "UP": 3, "B": 4}


@cache
def compiled(arch):
    """Return the oracle for an architecture, and the words that ptxas generates for the test kernels."""
    target = COMPILED_AS.get(arch, arch)
    ptxas, nvdisasm, _ = find_tools(target)
    cubin = compile_ptx(ptxas, target, "".join(text for _, text in iter_modules(target)))
    return Oracle(nvdisasm, target, cubin[:64]), list(iter_code(cubin))


# The part that `make test` runs: facts, single words and fields below, and the tests of each table in test_tables.py.
@pytest.mark.full
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.timeout(600)
def test_the_table_is_what_is_derived(arch):
    text, _ = derive(arch)
    committed = (TABLES / f"{arch}.txt").read_text()
    lines = [[line for line in one.splitlines() if not line.startswith("#")] for one in (text, committed)]
    assert lines[0] == lines[1], "run: python -m gpt.sass.derive"


@pytest.mark.parametrize("arch", FIRST)
def test_facts_are_what_ptxas_does(arch):
    ptxas, nvdisasm, _ = find_tools(arch)
    assert find_facts(arch, ptxas, nvdisasm) == ARCHS[arch]


@pytest.mark.parametrize(("arch", "highest"), [("sm_90", 61), full("sm_100", 77), full("sm_120", 77)])
def test_uniform_registers_that_ptxas_uses(arch, highest):
    """sm_90 has 63 uniform registers, of which ptxas leaves two unused. If it also does so from sm_100 on, there are 80
    there.
    """
    assert find_highest_uniform(arch, find_tools(arch)[0]) == highest


@pytest.mark.parametrize("arch", FIRST)
def test_every_word_of_the_test_kernels_does_what_nvdisasm_lists(arch):
    """Each word is compared separately, even if its text equals another's."""
    oracle, words = compiled(arch)
    words = random.Random(46).sample(words, 1500 if FULL else 600)
    table = table_of(arch)
    checked = 0
    for word, listed in zip(words, oracle.ask(words, each=True), strict=True):
        if word & 0xFFF not in table.opcodes and arch != "sm_90":  # not in the table, so it's refused, which is safe
            continue
        name = table.opcode(word).name
        if listed is None or name == "CALL":  # for a call, nvdisasm lists a guess about the function
            continue
        effect = table.effect(word)
        assert effect.exact, listed.text
        expected = [Registers(**listed.writes), Registers(**listed.reads)]
        found = [effect.writes._replace(B=0), effect.reads._replace(B=0)]  # the listing has no column for barriers
        found = [one._replace(UR=one.UR & ~-(1 << 63)) for one in found]  # or for UR64 and up
        if any(operand.file in ("PR", "UPR") for operand in table.opcode(word).operands):
            # For R2P and similar instructions, predicates aren't listed.
            found = [one._replace(P=0, UP=0) for one in found]
            expected = [one._replace(P=0, UP=0) for one in expected]
        assert found == expected, listed.text
        checked += 1
    assert checked > (1000 if FULL else 400)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_no_bit_outside_an_operand_names_a_register():
    """Some operands show only with a modifier: the carry of UIMAD.X, the descriptor of a prefetch with a cache hint. So
    every two bits outside the known operands are flipped together, in a word of each opcode.
    """
    ptxas, nvdisasm, _ = find_tools("sm_90a")
    derivation, table = Derivation("sm_90a", ptxas, nvdisasm), table_of("sm_90")
    sizes = derivation.facts.register_bits
    found = set()
    for opcode, seed, free in iter_free(derivation, table):
        words = [seed ^ 1 << bit for bit in free]
        texts = derivation.oracle.texts([word ^ 1 << bit for word in words for bit in (*free, 127)])
        texts = [registers_of(text, sizes) if text else None for text in texts]
        for start in range(0, len(texts), len(free) + 1):
            *turned, before = texts[start : start + len(free) + 1]
            for bit, after in zip(free, turned, strict=True):
                if before and after and before != after and [file for file, _ in before] == [file for file, _ in after]:
                    found.add((opcode.name, bit))
    assert found <= {("F2FP", 78)}, "F2FP.MERGE_C names its operands in another order"


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_any_two_bits_outside_operands_change_widths_as_listed():
    """A table may let an instruction read too much, but never too little, and its writes are the right ones."""
    ptxas, nvdisasm, _ = find_tools("sm_90a")
    derivation, table = Derivation("sm_90a", ptxas, nvdisasm), table_of("sm_90")
    checked, wrong = 0, []
    for opcode, seed, free in iter_free(derivation, table):
        words = [seed ^ 1 << one ^ (other != one) << other for one in free for other in free if one <= other]
        hidden = ("P", "UP") if {"PR", "UPR"} & {one.file for one in opcode.operands} else ()  # R2P and so on
        for word, listed in zip(words, derivation.oracle.ask(words), strict=True):
            if listed is None or "???" in listed.text:
                continue
            checked += 1
            effect = table.effect(word)
            ours, theirs = effect.writes._asdict(), effect.reads._asdict()
            for file in {"R", "UR", "P", "UP"} - {*hidden}:
                limit = (1 << 63) - 1 if file == "UR" else -1  # nvdisasm doesn't list higher uniform registers
                writes, reads = listed.writes.get(file, 0) & limit, listed.reads.get(file, 0) & limit
                too_many = ours[file] & limit & ~writes if effect.exact else 0
                if too_many or writes & ~ours[file] or reads & ~theirs[file]:
                    wrong.append(f"{word:032x} {listed.text}: {file}")
    assert checked > 600_000
    assert not wrong


def iter_free(derivation, table):
    """Yield opcodes that aren't jumps, each with a word and the bits that belong to no operand."""
    for number, words in derivation.seeds.items():
        opcode = table.opcodes.get(number)
        if opcode and not opcode.target and opcode.name != "CALL":
            taken = operand_bits(opcode, derivation.facts.register_bits)
            yield opcode, max(words), [bit for bit in range(FIRST_BIT, LAST_BIT + 1) if not taken >> bit & 1]


def operand_bits(opcode, sizes):
    widths, taken = {"PR": 7, "UPR": 7, **sizes}, 0
    for one in opcode.operands:
        taken |= (1 << widths[one.file]) - 1 << one.low if one.low else 0
    return taken


@pytest.mark.parametrize("arch", FIRST)
def test_jumps_lead_where_nvdisasm_says(arch):
    oracle, words = compiled(arch)
    table = table_of(arch)
    known = [word for word in dict.fromkeys(words) if word & 0xFFF in table.opcodes]
    jumps = [word for word in known if table.opcode(word).target]
    assert len(jumps) > 20
    for word, text in zip(jumps, oracle.texts(jumps), strict=True):
        found = re.search(r"\.([-+]0x[0-9a-f]+)$", text)
        if found:
            assert target_of(word, table.opcode(word).target, 0) == int(found[1], 16), text
        else:
            assert "WARPSYNC" in text


@pytest.mark.parametrize("arch", every(4, ARCHS))
def test_every_line_compiles(arch):
    """ptxas doesn't report lines that it ignores, but it accepts all of these."""
    assert len(list(iter_variations(arch))) > 700
    assert compiled(arch)[1]


def test_an_opcode_has_a_barrier_if_its_latency_varies():
    _, words = compiled("sm_90")
    table = table_of("sm_90")
    for word in words:
        if word >> 110 & 7 != 7 or word >> 113 & 7 != 7:
            assert table.opcode(word).variable, f"{word:032x}"


def test_registers_in_a_text():
    assert registers_of("@!P3 R2UR UR4, R12", SIZES) == [("P", 3), ("UR", 4), ("R", 12)]
    assert registers_of("LDG.E R4, desc[UR4][R2.64+0x10], !PT", SIZES) == [("R", 4), ("UR", 4), ("R", 2), ("P", 7)]
    assert registers_of("BSSY B1, .+0x40", SIZES) == [("B", 1)]


@pytest.mark.full
def test_fields_are_found_by_turning_bits():
    oracle, _ = compiled("sm_90")
    load = 0x000EA8000C1E1900_0000000402047981  # LDG.E R4, desc[UR4][R2.64]
    found = {(field.file, field.low, field.inverted) for field in find_fields(oracle, [load & ~CONTROL], SIZES)}
    expected = {("P", 12), ("R", 16), ("R", 24), ("UR", 32), ("P", 81)}
    assert found == {(file, low, False) for file, low in expected} | {("P", 64, True)}
