"""Live registers and registers in flight, in small programs and, compared with nvdisasm, in our own kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.flow import in_flight_before
from gpt.sass.graph import make_graph
from gpt.sass.kernels import read_kernel
from gpt.sass.live import live_before
from gpt.sass.masks import EVERY_REGISTER, pack, unpack
from gpt.sass.tables import Registers, table_of
from gpt.sass.words import NO_BARRIER, control_of, parse_words, with_control
from tests import cuda
from tests.sass.assembly import program
from tests.sass.listing import list_cubin, listed_code

KERNELS = Path(__file__).with_name("flow.cu")


def general(mask: int) -> set[int]:
    """Return the numbers of the general registers in a mask."""
    return {number for number in range(255) if mask >> number & 1}


def live(*lines: str) -> list[set[int]]:
    """Return the general registers that are live before each instruction."""
    code = program(*lines)
    return [general(mask) for mask in live_before(code, make_graph(code))]


def test_a_register_lives_from_its_write_to_its_last_read():
    assert live("MOV 4 255", "MOV 5 4", "MOV 6 5", "STG 8 6", "EXIT") == [
        {8, 9},
        {4, 8, 9},
        {5, 8, 9},
        {6, 8, 9},
        set(),
    ]


def test_a_guarded_write_ends_no_life():
    assert live("@0 MOV 4 255", "STG 8 4", "EXIT")[0] == {4, 8, 9}


def test_a_loop_keeps_what_it_reads_alive():
    found = live("back: STG 8 4", "MOV 4 5", "@0 BRA back", "EXIT")
    assert found == [{4, 5, 8, 9}, {5, 8, 9}, {4, 5, 8, 9}, set()]


def test_a_function_reads_for_its_caller():
    found = live("MOV 4 255", "CALL one", "STG 8 5", "EXIT", "one: MOV 5 4", "RET 20")
    assert found[1] == {4, 8, 9, 20, 21}
    assert found[4] == {4, 8, 9, 20, 21}


def test_all_that_is_named_is_live_where_unknown_code_is_called():
    """The callee can't expect values in registers that the code never mentions."""
    code = program("MOV 4 255", "CALLR 4", "EXIT", "MOV 9 255", "EXIT")
    found = live_before(code, make_graph(code))
    named = 0
    for masks in code.masks:
        named |= masks.reads | masks.writes
    assert named >> 9 & 1 and not named >> 10 & 1
    assert found[1] == named
    assert found[0] == named & ~(1 << 4)


def flight(*lines: str):
    code = program(*lines)
    return in_flight_before(code, make_graph(code))


def test_a_load_is_in_flight_until_its_barrier_is_awaited():
    found = flight("LDG 4 8, w2", "MOV 5 255", "MOV 6 255, b2", "EXIT")
    assert general(found[1].writes[2]) == {4}
    assert general(found[1].reads[2]) == {8, 9}
    assert general(found[2].after_waiting(0)) == {4, 8, 9}
    assert found[2].after_waiting(1 << 2) == 0
    assert found[3].after_waiting(0) == 0


def test_unreachable_block_is_never_reached():
    code = program("LDG 4 8, w2", "EXIT", "MOV 5 255", "EXIT")
    graph = make_graph(code)
    assert [graph.reaches(index) for index in range(4)] == [True, True, False, False]
    assert [state is None for state in in_flight_before(code, graph)] == [False, False, True, True]


def test_other_control_fields_change_only_work_in_flight():
    """The rest of a word must not change, because instructions are shared."""
    code = program("LDG 4 8, w2", "MOV 5 255", "EXIT")
    waiting = with_control(code.words[1], control_of(code.words[1])._replace(wait=1 << 2))
    other = code.with_controls({1: waiting})
    before, after = (in_flight_before(one, make_graph(one)) for one in (code, other))
    assert (general(before[2].after_waiting(0)), after[2].after_waiting(0)) == ({4, 8, 9}, 0)
    assert (other.words[1], other[1].word, other.controls.waits[1]) == (waiting, waiting, 1 << 2)
    assert code.controls.waits[1] == 0
    with pytest.raises(ValueError, match="control part"):
        code.with_controls({1: code.words[2]})


def test_a_read_barrier_covers_operands_only():
    found = flight("LDG 4 8, w2 r3", "MOV 5 255, b3", "EXIT")
    assert (general(found[1].writes[2]), general(found[1].reads[3])) == ({4}, {8, 9})
    assert general(found[2].after_waiting(0)) == {4}


def test_a_store_without_a_barrier_stays_in_flight():
    found = flight("STG 8 4", "MOV 5 255, b012345", "EXIT")
    assert general(found[2].unawaited) == {4, 8, 9}
    assert found[2].after_waiting(0) == 0


def test_a_later_memory_instruction_covers_a_store_without_a_barrier():
    """Memory instructions read their operands in order (docs/sass-rules.md)."""
    found = flight("STG 8 4", "STS 3 2", "LDG 6 12, w1", "MOV 5 255, b1", "EXIT")
    assert general(found[2].unawaited) == {4, 8, 9, 2, 3}
    assert general(found[3].unawaited) == set()
    assert general(found[3].after_waiting(0)) == {6, 12, 13, 4, 8, 9, 2, 3}
    assert found[4].after_waiting(0) == found[4].unawaited == 0


def test_results_without_a_barrier_stay_in_flight():
    """Examples are a load without a barrier for its result, and HGMMA, whose scoreboard isn't tracked."""
    found = flight("LDG 6 12, r1", "HGMMA 20 30", "LDG 4 8, w0", "MOV 5 255, b01", "EXIT")
    assert general(found[4].unawaited) == {6, 20, 21, 30}


def test_a_result_that_is_read_has_arrived():
    code = program("LDG 1 4", "LDG 2 4, w0", "MOV 9 9, b0", "@0 MOV 8 1", "MOV 9 1", "MOV 9 9", "LDG 1 4", "EXIT")
    late = [general(one.late) for one in in_flight_before(code, make_graph(code)) if one]
    assert late == [set(), *[{1}] * 4, set(), set(), {1}]


def test_a_result_that_is_read_late_may_not_have_arrived():
    code = program("HGMMA 20 30", "HGMMA 20 20", "STG 4 20", "MOV 5 20", "MOV 6 6", "EXIT")
    late = [general(one.late) for one in in_flight_before(code, make_graph(code)) if one]
    assert late == [set(), *[{20, 21}] * 3, {21}, {21}]


def test_a_result_that_is_read_on_one_path_may_arrive_on_another():
    code = program("LDG 1 4", "@0 BRA next", "MOV 9 1", "BRA end", "next: MOV 8 8", "end: MOV 7 7", "EXIT")
    late = [general(one.late) for one in in_flight_before(code, make_graph(code)) if one]
    assert late == [set(), {1}, {1}, set(), {1}, {1}, {1}]


@pytest.mark.parametrize("optimization", ["-O1", "-O3"])
def test_the_number_of_a_block_barrier_is_read_late(optimization):
    """ptxas gives BAR a read barrier only if something overwrites the register with the number."""
    text = """.version 8.0
        .target sm_90
        .address_size 64
        .visible .entry kernel(.param .u64 out) {
            .reg .b64 %to; .reg .b32 %id;
            ld.param.u64 %to, [out];
            mov.u32 %id, %tid.y;
            bar.sync %id, 64;
            ATEND
            ret;
        }"""
    found = {}
    for case, end in (("kept", "st.global.u32 [%to], 7;"), ("overwritten", _OVERWRITE)):
        try:
            image = cuda.assemble(text.replace("ATEND", end), "sm_90", optimization)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        kernel = read_kernel(CubinEditor(image), "kernel", table_of("sm_90"))
        at = kernel.code.find({"BAR"})[0]
        number, after = kernel.code[at].reads.R, kernel.flight[at + 1]
        assert number.bit_count() == 1 and (after.unawaited | after.after_waiting(0)) & number
        found[case] = kernel.code[at].control.read_barrier == NO_BARRIER, bool(after.unawaited & number)
    assert found == {"kept": (True, True), "overwritten": (False, False)}


_OVERWRITE = """.reg .pred %p;
            again: ld.volatile.global.u32 %id, [%to];
            bar.sync %id, 64;
            setp.ne.u32 %p, %id, 0;
            @%p bra again;"""


def test_both_ways_to_an_instruction_count():
    found = flight("@0 BRA other", "LDG 4 8, w0", "BRA end", "other: LDG 6 8, w1", "end: EXIT", "EXIT")
    assert general(found[4].after_waiting(0)) == {4, 6, 8, 9}
    assert general(found[4].after_waiting(1)) == {6, 8, 9}
    assert found[5] is None  # never reached


def test_masks_of_all_register_files():
    registers = Registers(R=1 << 254 | 1, UR=1 << 62, P=64, UP=1, B=1 << 15)
    assert unpack(pack(registers)) == registers
    assert unpack(EVERY_REGISTER) == Registers((1 << 255) - 1, (1 << 255) - 1, 127, 127, 0xFFFF)


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    """Compile the kernels of flow.cu."""
    try:
        image = cuda.nvrtc_compile(KERNELS.read_text(), "sm_90")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("flow") / "flow.cubin"
    path.write_bytes(image)
    return path


def test_liveness_is_what_nvdisasm_says(cubin):
    """In kernels without calls, every register that's live in the listing is live in our analysis. The converse doesn't
    hold: nvdisasm ends a live range at a guarded write.
    """
    try:
        listing = list_cubin(str(cuda.tool("nvdisasm")), cubin)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    compared = 0
    with cubin.open("rb") as file:
        sections = {s.name.removeprefix(".text."): s.data() for s in ELFFile(file).iter_sections()}
    for name, rows in listing.items():
        code = listed_code(parse_words(sections[name])[: len(rows)], rows)
        assert not any(one.name == "CALL" for one in code)
        graph = make_graph(code)
        guarded = 0
        for one in code:
            guarded |= 0 if one.guard.always else pack(one.writes)
        reachable = graph.reachable()
        for index, (mask, row) in enumerate(zip(live_before(code, graph), rows, strict=True)):
            if graph.block_at(index) in reachable:
                ours, theirs = mask & (1 << 528) - 1 & ~2, pack(row.live) & ~2  # R1 is the stack pointer, live at EXIT
                where = f"{name} {16 * index:#x} {row.text}: {unpack(ours ^ theirs)}"
                assert not theirs & ~ours, where
                assert not ours & ~theirs & ~guarded, where
                compared += 1
    assert compared > 500


def test_barriers_of_the_listing_are_awaited(cubin):
    """No register that ptxas's code reads or writes is still in flight at that point."""
    try:
        listing = list_cubin(str(cuda.tool("nvdisasm")), cubin)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with cubin.open("rb") as file:
        sections = {s.name.removeprefix(".text."): s.data() for s in ELFFile(file).iter_sections()}
    loads = 0
    for name, rows in listing.items():
        code = listed_code(parse_words(sections[name])[: len(rows)], rows)
        for one, state in zip(code, in_flight_before(code, make_graph(code)), strict=True):
            if state is None:
                continue
            arriving = 0
            for barrier in range(6):
                if not control_of(one.word).wait >> barrier & 1:
                    arriving |= state.writes[barrier]
            assert not pack(one.reads) & arriving, f"{name} {one!r} reads what's still being loaded"
            loads += bool(arriving)
    assert loads > 50
