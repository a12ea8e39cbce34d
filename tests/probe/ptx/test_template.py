"""Similar instructions are lowered once: each gets the code that it would get alone. Shared values
are computed once.
"""

import re
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.probe.face import SLOTS, Face, Template
from gpt.probe.operands import bind
from gpt.probe.ptx.template import Shapes
from gpt.probe.ptx.weave import LeftAlone, weave
from gpt.probe.read.load import find_probe, load_probes
from gpt.probe.verify import verify
from gpt.ptx.quick import parse_instruction
from gpt.ptx.registers import Registers
from gpt.ptx.scan import scan_statements
from tests.probe.ptx.woven import check, kernel, lines, probe, simple
from tests.tiers import examples

REGISTER = st.integers(1, 8).map("%rd{}".format)
SMALL = st.integers(1, 8).map("%r{}".format)
OFFSET = st.sampled_from(["", "+8", "+-16", "+98765432000", "-4", "+0x20"])
LABEL = st.sampled_from(["$L__BB0_1", "$L__BB0_12", "BB1_2", "%r1", "bra"])
GUARD = st.sampled_from(["", "@%p1 ", "@!%p2 "])
FORMS = [
    "ld.global.u32 {r}, [{a}{o}];",
    "ld.global.b64 {b}, [{a}{o}];",
    "ld.global.v2.u32 {{{r}, %r7}}, [{a}{o}];",
    "st.global.u32 [{a}{o}], {r};",
    "st.global.b64 [{a} + 8], {b};",
    "cp.async.ca.shared.global [{r}], [{a}{o}], 16, {r};",
    "ld.global.u32 {r}, [{a}{o}]; // {b}",
    "bra {l};",
    "bra.uni \t{l};",
]
INSTRUCTION = st.builds(
    lambda form, guard, a, b, r, o, to: guard + form.format(a=a, b=b, r=r, o=o, l=to),
    st.sampled_from(FORMS), GUARD, REGISTER, REGISTER, SMALL, OFFSET, LABEL,
)  # fmt: skip
FILES = [
    simple("ld.global:st.global:cp.async.ca", "cvt.u32.u64 %a, ADDR;\nadd.u32 %a, %a, BYTES;", when)
    for when in ("before", "after")
] + [
    simple("ld.global", "cvt.u32.u64 %a, OUT;", "after"),
    simple("st.global:cp.async", "cvt.u32.u64 %a, IN1;"),
    simple("bra", "selp.u32 %a, 1, 0, PRED;"),
]


def pieces(data):
    """Return each instruction with the lines inserted around it."""
    found = re.split(r"/\*cut\*/", data.decode())[1:-1]
    kept = ("\n".join(line for line in piece.splitlines() if line) for piece in found)
    return [re.sub(r"(%gpt_f_[a-z]+\d*_)\d+", r"\1N", piece) for piece in kept]


@settings(max_examples=examples(100))
@given(st.lists(INSTRUCTION, min_size=1, max_size=12), st.lists(st.sampled_from(FILES), min_size=1, max_size=2))
def test_each_instruction_gets_what_it_would_get_alone(instructions, files):
    def woven(texts):
        body = "\n/*cut*/\n".join(["", *texts, "ret;"])
        return weave(kernel(body), "k", [simple("kernel", "mov.u32 %a, SMID;", "after"), *files])

    together = woven(instructions)
    alone = [woven([instruction]) for instruction in instructions]
    assert pieces(together.data) == [piece for one in alone for piece in pieces(one.data)]
    facts = {fact for one in alone for fact in one.misfits}
    assert set(together.misfits) == facts and len(facts) == len(together.misfits)


def test_branches_share_a_shape_wherever_they_go():
    body = "".join(f"$L_{n}:\n@%p1 bra{way}$L_{n};\n" for n in range(9) for way in (" ", " \t", ".uni ", ".uni\t"))
    shapes = Shapes()
    texts = [line for line in body.splitlines() if "bra" in line]
    found = {id(shapes.find(text, Registers(*scan_statements(".reg .pred %p<2>;")))[0]) for text in texts}
    assert len(found) == 4


def test_messages_name_existing_choices():
    woven = weave(
        kernel("ld.global.u32 %r1, [%rd1];\nld.global.b64 %rd5, [%rd1];\nld.global.b64 %rd6, [%rd1];\nret;"),
        "k",
        [simple("ld.global", "mov.u32 %a, OUT;", "after")],
    )
    assert [site.woven for site in woven.sites] == [1]
    assert not any("gpt_" in fact for fact in woven.misfits) and woven.misfits


def test_an_instruction_without_room_for_a_probe_leaves_no_kept_values():
    """Values kept for one instruction aren't copied for the next."""
    body = "ld.global.v2.b64 {%rd1, %none}, [%rd1+%none];\nld.global.b64 %rd2, [%rd2];\nret;"
    woven = weave(kernel(body), "k", [simple("ld.global", "cvt.u32.u64 %a, ADDR;", "after")])
    assert ["'%none', which is not a register" in fact for fact in woven.misfits] == [True]
    kept = [line for line in lines(woven) if line.startswith("mov.b64 %gpt_f_")]
    assert kept == ["mov.b64 %gpt_f_b64_1, %rd2;"]


def test_the_probes_of_an_exit_share_what_they_compute(tmp_path):
    files = [load_probes(find_probe(name)) for name in ("block_sched", "warp_sched", "gmem_bytes")]
    found = lines(check(kernel("@%p1 ret;\nld.global.u32 %r1, [%rd1];\nret;"), *files, tmp_path=tmp_path))
    # The place where a warp saves is computed at the entry; the block's number, the lane that saves, and if it's the
    # first thread, at the exits.
    for shared, times in {"%ctaid.x;": 3, "%tid.z;": 3, "activemask.b32": 2, "%lanemask_lt;": 2}.items():
        assert sum(shared in line for line in found) == times, shared


def test_a_total_adds_only_what_something_was_added_to(tmp_path):
    file = load_probes(find_probe("gmem_bytes"))
    for body, added in (
        ("ld.global.u32 %r1, [%rd1];", {0: "read"}),
        ("atom.global.add.u32 %r1, [%rd1], 1;", {0: "read", 8: "written"}),
        ("cp.async.ca.shared.global [%r1], [%rd1], 16;", {0: "async"}),
    ):
        woven = check(kernel(f"{body}\nret;"), file, tmp_path=tmp_path)
        reds = [re.search(r"red\.global\.add\.u64 \[%gpt_b64_\d+\+?(\d*)\]", line) for line in lines(woven)]
        assert {int(red[1] or 0) for red in reds if red} == set(added)
        assert {field.offset: field.name for field in woven.maps[0].fields} == added


def test_a_value_computed_on_one_path_is_computed_again(tmp_path):
    """A branch in one snippet skips nothing that the next snippet relies on."""
    text = (
        '[map.m]\nlevel = "warp"\ndata = {a = "u64", b = "u32"}\n[probe.x]\nposition = "ld.global"\nlevel = "warp"\n'
        'before = """.reg .pred %q; .reg .u32 %b;\nmov.u32 %b, SMID;\nsetp.eq.u32 %q, %b, 0;\n'
        '@%q bra over;\nSAVE [m] {BLOCK, %b};\nover:\nSAVE [m] {BLOCK, %b};"""\n'
    )
    body = kernel("ld.global.u32 %r1, [%rd1];\nret;")
    branching = lines(check(body, probe(text), tmp_path=tmp_path))
    plain = lines(check(body, probe(text.replace("@%q bra over;\n", "").replace("over:\n", "")), tmp_path=tmp_path))
    assert [sum("activemask" in line for line in found) for found in (plain, branching)] == [1, 2]


NUMBERS = [f"98765432000{place:04}" for place in range(8)]
WORDS = [f"gpt_label_{n}_" for n in range(8)] + ["s98765432000_0", "x987654320000005"]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_in_a_probe_is_not_replaced_by_an_offset(number):
    """The probe's number is kept, whatever number stands for an instruction's offset while its shape is lowered."""
    file = simple("ld.global", f".reg .u64 %n; mov.u64 %n, {number};\ncvt.u32.u64 %a, %n;")
    for offset in ("7", number, "98765432000"):
        body = f"ld.global.u32 %r1, [%rd1+{offset}];\nld.global.u32 %r2, [%rd2+8];\nret;"
        assert lines(weave(kernel(body), "k", [file])).count(f"mov.u64 %gpt_0_n, {number};") == 2


def test_a_loop_of_a_probe_turns_as_often_as_was_proved(tmp_path):
    loop = "mov.u64 %n, 987654320000003; L: add.u64 %n, %n, 1; setp.lt.u64 %q, %n, 987654320000005; @%q bra L;"
    file = simple("ld.global", f".reg .pred %q; .reg .u64 %n; {loop} mov.u32 %a, 0;")
    verify(file)
    found = lines(check(kernel("ld.global.u32 %r1, [%rd1+16];\nret;"), file, tmp_path=tmp_path))
    assert "mov.u64 %gpt_0_n, 987654320000003;" in found
    assert "setp.lt.u64 %gpt_0_q, %gpt_0_n, 987654320000005;" in found


@pytest.mark.parametrize("word", WORDS)
def test_a_name_of_a_probe_stays_its_own(word):
    """Two registers don't become one, and a label isn't renamed to one of the program's."""
    registers = f".reg .b32 %{word}, {word}; mov.u32 %{word}, 71; mov.u32 {word}, 72;"
    file = simple("ld.global:bra", f"{registers} bra {word}; {word}: mov.u32 %a, {word};")
    found = lines(weave(kernel("L: @%p1 bra L;\nld.global.u32 %r1, [%rd1+16];\nret;"), "k", [file]))
    assert {line for line in found if line.endswith((" 71;", " 72;"))} == {
        f"mov.u32 %gpt_0_{word}, 71;",
        f"mov.u32 %gpt_0_{word}_, 72;",
    }
    label = f"$gpt_0_0_{word}"
    assert [sum(line.endswith(end) for line in found) for end in (f"bra {label};", f"{label}:")] == [2, 2]


def test_probe_messages_are_ascii():
    """If a probe's text weren't ASCII, part of it could be taken for a slot."""
    with pytest.raises(MalformedError, match="not ASCII"):
        simple("ld.global", 'mov.u32 %a, "\ue000";')
    simple("ld.global", "mov.u32 %a, 1; // \ue000")


def test_an_instruction_of_more_registers_than_there_are_slots():
    """Real probes don't look like this, but text without a slot must be used unchanged."""
    registers = [f"%v{n}" for n in range(SLOTS + 9)]
    text = f"mov.b32 {{{', '.join(registers)}}}, %r1;"
    shape, values = Shapes().find(text, Registers(*scan_statements(f".reg .b32 %v<{SLOTS + 9}>, %r<2>;")))
    assert Template(str(shape.instruction)).fill(values) == text and len(values) == SLOTS


class Alone:
    """Instructions without shapes: each is parsed, bound and lowered separately."""

    def find(self, text, types):
        instruction = parse_instruction(text)
        return Face(instruction, bind(instruction), {}), []


CONSTANT = st.sampled_from([*NUMBERS, "57344", "0xE000", "16", "8"])
SNIPPET = st.lists(
    st.one_of(
        st.builds("mov.u64 %n, {};".format, CONSTANT),
        st.builds("add.u64 %n, {}, {};".format, st.sampled_from(["%n", "ADDR"]), CONSTANT),
        st.builds("bra {0}; mov.u64 %n, {1}; {0}:".format, st.sampled_from(WORDS), CONSTANT),
        st.builds("setp.lt.u64 %q, %n, {};".format, CONSTANT),
        st.builds("mov.u32 {0}, %a; mov.u32 %a, {0};".format, st.sampled_from(WORDS)),
        st.just("@%q mov.u32 %a, BYTES;"),
    ),
    max_size=5,
    unique_by=lambda line: line.partition(";")[0],  # labels must be unique
)


@settings(max_examples=examples(100))
@given(st.lists(INSTRUCTION, min_size=1, max_size=8), SNIPPET, st.sampled_from(["before", "after"]))
def test_shapes_change_nothing(instructions, snippet, when):
    """A probe's text is preserved, whatever it is, and the program's words stay in place."""
    declared = f".reg .pred %q; .reg .u64 %n; .reg .u32 {', '.join(WORDS)};"
    file = simple("ld.global:st.global:cp.async.ca", "\n".join([declared, *snippet]), when)
    data = kernel("\n/*cut*/\n".join(["", *instructions, "ret;"]))
    found = []
    for shapes in (Shapes, Alone):
        with mock.patch("gpt.probe.ptx.weave.Shapes", shapes):
            try:
                woven = weave(data, "k", [file])
                found.append((pieces(woven.data), sorted(woven.misfits), woven.sites))
            except LeftAlone as error:
                found.append(str(error))
    assert found[0] == found[1]
