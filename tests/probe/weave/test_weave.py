"""What weaving inserts, and that the program comes back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.errors import GptError, MalformedError
from gpt.probe.read.load import find_probe, load_probes
from gpt.probe.verify import verify
from gpt.probe.weave.weave import MARK, LeftAlone, unweave, weave
from gpt.ptx.prune import prune, pruned
from gpt.ptx.scan import scan_module
from tests import cuda
from tests.probe.weave.woven import HEAD, REGISTERS, SAVES, assembled, check, half_written, kernel, lines, probe, simple
from tests.tiers import examples

# What is inserted


def test_parameters_go_behind(tmp_path):
    data = kernel(
        "ret;", params=".param .u32 a, .param .align 16 .b8 b[20], .param .u8 c, .param .u64 .ptr .align 256 d"
    )
    woven = check(data, simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert [tuple(param) for param in woven.params] == [(0, 4), (16, 20), (36, 1), (40, 8)]
    assert [tuple(param) for param in woven.added] == [(48, 8)]


def test_sizes_of_parameters_are_in_any_base(tmp_path):
    params = ".param .b8 a[010], .param .align 020 .b8 b[4U], .param .b8 c[WARP_SZ], .param .align 4U .b8 d[0b11], "
    params += ".param .align 0x10 .b8 e[0x10]"
    woven = check(kernel("ret;", params=params), simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert [tuple(param) for param in woven.params] == [(0, 8), (16, 4), (20, 32), (52, 3), (64, 16)]


@pytest.mark.parametrize(
    "param",
    [
        "b8 a[1.5]",
        "b8 a[-1]",
        "b8 a[]",
        "b8 a[09]",
        "b8 a[2+3]",
        "b8 a[x]",
        f"b8 a[{'9' * 5000}]",
        "align 0 .b8 a[4]",
        "align 08 .b8 a[4]",
        "align 3 .u32 a",
    ],
)
def test_parameters_without_a_size_are_malformed(param):
    with pytest.raises(MalformedError, match="has no size or no alignment") as caught:
        weave(kernel("ret;", params=f".param .{param}"), "k", [simple("kernel", "mov.u32 %a, SMID;")], "m")
    assert caught.value.where == "m:4:1"


def test_room_that_is_just_enough(tmp_path):
    for head, size in ((HEAD, 4344), (HEAD.replace("8.0", "8.1"), 32752)):
        data = kernel("ret;", head, f".param .align 64 .b8 p[{size}]")
        check(data, simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
@pytest.mark.parametrize(
    "params",
    [
        ".param .u32 a, .param .align 64 .b8 b[128], .param .u8 c",  # as kernels take a CUtensorMap
        ".param .align 128 .b8 a[128], .param .u64 b",
        ".param .align 32 .b8 a[16], .param .align 4 .f16x2 b[3], .param .u64 .ptr .align 256 c, .param .b128 d",
    ],
)
def test_parameters_are_where_ptxas_puts_them(target, params, tmp_path):
    data = kernel("ret;", HEAD.replace("8.0", "8.8").replace("sm_90", target), params)
    woven = weave(data, "k", [simple("kernel", "mov.u32 %a, SMID;")])
    assembled(woven.data, tmp_path, target)
    told = cuda.run("cuobjdump", "-elf", tmp_path / "k.cubin")
    found = re.findall(r"Ordinal\s*: 0x(\w+)\s+Offset\s*: 0x(\w+)\s+Size\s*: 0x(\w+)", told)
    expected = sorted(tuple(int(number, 16) for number in one) for one in found)
    assert [(number, *param) for number, param in enumerate(woven.params + woven.added)] == expected


@pytest.mark.parametrize("head", ["k", "k()", "k( )", "k(\n)"])
def test_kernels_without_parameters(head, tmp_path):
    data = f"{HEAD}.entry {head} {{ ret; }}".encode()
    woven = check(data, simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert woven.params == [] and woven.added[0].offset == 0


def test_a_guard_holds_for_the_probe(tmp_path):
    file = simple("ld.global", "mov.u32 %a, SMID;")
    text = "\n".join(lines(check(kernel("@!%p1 ld.global.u32 %r1, [%rd1];\nret;"), file, tmp_path=tmp_path)))
    assert re.search(r"@%gpt_pred_\d+ st\.global\.b32", text)
    assert "not.pred" in text
    text = "\n".join(lines(check(kernel("ld.global.u32 %r1, [%rd1];\nret;"), file, tmp_path=tmp_path)))
    assert "not.pred" not in text


def test_no_pred_does_not_look_at_the_guard(tmp_path):
    file = simple("bra", "selp.u32 %a, 1, 0, PRED;", more="no_pred = true")
    text = "\n".join(lines(check(kernel("@%p1 bra L;\nL: ret;"), file, tmp_path=tmp_path)))
    assert "selp.u32 %gpt_0_a, 1, 0, %p1;" in text


def test_values_are_those_from_before_the_instruction(tmp_path):
    file = simple("ld.global", "cvt.u32.u64 %a, ADDR;\nadd.u32 %a, %a, OUT;", "after")
    found = lines(check(kernel("ld.global.u32 %r1, [%rd1+8];\nret;"), file, tmp_path=tmp_path))
    assert not any(line.startswith("mov.b64") and line.endswith("%rd1;") for line in found)
    file = simple("ld.global.b64", "cvt.u32.u64 %a, ADDR;", "after")
    body = "@%p1 ld.global.b64 %rd1, [%rd1+8];\nret;"
    woven = check(kernel(body), file, tmp_path=tmp_path)
    before, after = woven.data.decode().split("ld.global.b64 %rd1")
    copy = re.search(r"mov\.b64 (%gpt_f_b64_\d+), %rd1;", before)
    assert copy and f"add.s64 %gpt_b64_0, {copy[1]}, 0+8;" in after


def test_a_guard_that_the_instruction_changes(tmp_path):
    file = simple("setp", "mov.u32 %a, 1;", "after")
    woven = check(kernel("@%p1 setp.lt.u32 %p1, %r1, %r2;\nret;"), file, tmp_path=tmp_path)
    before, after = woven.data.decode().split("@%p1 setp")
    copy = re.search(r"mov\.pred (%gpt_f_pred_\d+), %p1;", before)
    assert copy and f"@{copy[1]} " in after


def test_registers_of_other_types_and_sizes(tmp_path):
    file = probe('[map.m]\ndata = {a = "u64"}\n[probe.x]\nposition = "add:ld.global"\nafter = "SAVE [m] {OUT};"\n')
    body = (
        "add.f32 %f1, %f1, 0f3F800000; add.s32 %r1, %r1, -1; add.s64 %rd1, %rd1, 1;"
        "ld.global.u8 %r1, [%rd1]; ld.global.v2.u32 {%r1, %r2}, [%rd1]; ret;"
    )
    check(kernel(body), file, tmp_path=tmp_path)


@pytest.mark.parametrize("other", ["u32", "b32", "f32"])
def test_a_name_that_is_a_register_of_another_type_in_another_scope(other, tmp_path):
    """As inline assembly has it: { .reg .f32 r0; .. }."""
    scopes = f"{{ .reg .f32 r; add.f32 r, %f1, %f2; }} {{ .reg .{other} r; mov.b32 r, %r1; }}"
    woven = check(kernel(f"{scopes} ret;"), simple("add.f32", "mov.b32 %a, OUT;", "after"), tmp_path=tmp_path)
    assert not woven.misfits


@pytest.mark.parametrize("other", ["b64", "pred", "v2 .f32"])
def test_a_name_that_is_a_register_of_another_size_in_another_scope(other, tmp_path):
    scopes = f"{{ .reg .f32 r; add.f32 r, %f1, %f2; }} {{ .reg .{other} r; }} add.f32 %f3, %f1, %f2;"
    woven = check(kernel(f"{scopes} ret;"), simple("add.f32", "mov.b32 %a, OUT;", "after"), tmp_path=tmp_path)
    assert "'r', which is not a register of a plain type" in woven.misfits[0]
    access = kernel("{ .reg .b64 r; ld.global.u32 %r1, [r]; } { .reg .b32 r; } ld.global.u32 %r1, [%rd1]; ret;")
    woven = check(access, simple("ld.global", "cvt.u32.u64 %a, ADDR;"), tmp_path=tmp_path)
    assert "the address '[r]'" in woven.misfits[0]


def test_parts_of_a_record_wait_for_the_last(tmp_path):
    file = probe(
        '[x]\nposition = "bar.sync"\ndatamodel = "warp:16:4"\nbefore = "SAVE.u64 {CLOCK};"\n'
        'after = "SAVE.u32 {SMID, LANEID};"\n'
    )
    woven = check(kernel("bar.sync 0;\nret;"), file, tmp_path=tmp_path)
    before, after = woven.data.decode().split("bar.sync")
    assert "st.global" not in before and after.count("st.global") == 3
    assert woven.maps[0].unit_size == 8 + 4 * 16


def test_names_of_probes_never_meet(tmp_path):
    """Whatever tables and labels are called, and whatever the program calls its own."""
    halves = 'position = "kernel"\ndatamodel = "warp:16"\nbefore = "SAVE.u64 {CLOCK};"\nafter = "SAVE.u32 {%smid};"\n'
    file = probe("".join(f'["{name}"]\n{halves}' for name in ("a-b", "a.b", "\u00e9", "\u00e8", "x\\ny")))
    labels = "@%p bra %L; bra $L; %L: mov.u32 %a, 1; $L: mov.u32 %a, 2; _L: mov.u32 %a, 3;"
    jumps = simple("ld.global", f".reg .pred %p; .reg .b32 %rd1, $rd1, _rd1; setp.ne.u32 %p, BYTES, 4; {labels}")
    check(kernel("$gpt1_L: ld.global.u32 %r1, [%rd1];\nret;"), file, jumps, tmp_path=tmp_path)


def test_a_program_that_has_all_names_that_a_probe_might(tmp_path):
    taken = " ".join(f"gpt{n or ''}_ 98765432{n:03}" for n in range(1001))
    woven = check(kernel(f"// {taken}\nret;"), simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert "%gpt1001_0_a" in woven.data.decode()


def test_vectors_are_packed(tmp_path):
    file = probe(
        '[map.m]\ndata = {a = "u64", b = "u32"}\n[probe.x]\nposition = "ld.global.v2:st.global.v2"\n'
        'after = ".reg .b64 %a; .reg .b32 %b; mov.b64 %a, IN1; add.u64 %a, %a, %a; mov.b32 %b, ACTIVE; '
        'SAVE [m] {IN1, %b};"\n'
    )
    woven = check(
        kernel("ld.global.v2.u32 {%r1, %r2}, [%rd1]; st.global.v2.u32 [%rd1], {%r1, 7};\nret;"),
        file,
        tmp_path=tmp_path,
    )
    assert re.search(r"mov\.b64 %gpt_b64_\d+, \{%gpt_b32_\d+, %gpt_b32_\d+\};", woven.data.decode())
    assert [site.woven for site in woven.sites] == [1, 1]
    out = probe('[x]\nposition = "ld.global.v4"\ndatamodel = "thread:8"\nafter = "SAVE.u64 {OUT};"\n')
    load = "ld.global.v4.u16 {%h1, %h2, %h3, %h4}, [%rd1];"
    check(kernel(f".reg .b16 %h<5>;\n{load}\nret;"), out, tmp_path=tmp_path)
    with pytest.raises(LeftAlone, match="has '_' where the probe reads"):
        weave(kernel("ld.global.v4.u16 {%r1, _, %r2, _}, [%rd1];\nret;"), "k", [out])


@pytest.mark.parametrize(
    ("instruction", "helper", "made"),
    [
        ("mov.b32 {%h1, %h2}, %r1;", "OUT", "mov.b32 %gpt_b32_0, {%gpt_b16_0, %gpt_b16_1}"),
        ("mov.b32 %r1, {%h1, %h2};", "IN1", "mov.b32 %gpt_b32_0, {%gpt_b16_0, %gpt_b16_1}"),
        ("mov.b64 {%r1, %r2}, %rd2;", "OUT.y", "mov.b32 %gpt_b32_0, %r2"),
        ("mov.b64 %rd2, {%r1, %r2};", "IN1.y", "mov.b32 %gpt_b32_0, %r2"),
    ],
)
def test_what_mov_packs_and_unpacks(instruction, helper, made, tmp_path):
    file = simple("mov", f"mov.b32 %a, {helper};", "after")
    woven = check(kernel(f".reg .b16 %h<3>;\n{instruction}\nret;"), file, tmp_path=tmp_path)
    assert any(line.startswith(made) for line in lines(woven))


@pytest.mark.parametrize(
    ("position", "instruction", "helper"),
    [
        ("bra", "L: bra L;", "IN1"),
        ("brx", "T: .branchtargets A;\nbrx.idx %r1, T;\nA:", "IN2"),
        ("call", "call f, ();", "IN1"),
    ],
)
def test_where_control_goes_is_no_operand(position, instruction, helper):
    with pytest.raises(LeftAlone, match=f"has no {helper}"):
        weave(kernel(f"{instruction}\nret;"), "k", [simple(position, f"cvt.u32.u64 %a, {helper};")])


def test_bytes_of_a_vector_are_packed(tmp_path):
    out = probe('[x]\nposition = "ld.global"\ndatamodel = "thread:8"\nafter = "SAVE.u64 {OUT};"\n')
    body = (
        "ld.global.v4.u8 {%r1, %r2, %r3, %r4}, [%rd1]; ld.global.v2.u8 {%r1, %r2}, [%rd1];"
        "ld.global.v2.u16 {%h1, %h2}, [%rd1];"
    )
    woven = check(kernel(f".reg .b16 %h<5>;\n{body}\nret;"), out, tmp_path=tmp_path)
    assert [(site.matched, site.woven) for site in woven.sites] == [(3, 3)]
    assert [line.split(", ")[-2] for line in lines(woven) if line.startswith("bfi")] == ["0", "8", "16", "24", "0", "8"]


@pytest.mark.parametrize(
    ("instruction", "snippet", "value"),
    [
        ("st.global.f32 [%rd1], 0f3F800000;", "mov.u32 %a, IN1;", "1065353216"),
        ("st.global.b32 [%rd1], -2;", "mov.u32 %a, IN1;", "4294967294"),
        ("st.global.b32 [%rd1], 5;", ".reg .f32 %f; mov.f32 %f, IN1; mov.b32 %a, %f;", "0f00000005"),
        ("st.global.f32 [%rd1], 1.5;", ".reg .f32 %f; mov.f32 %f, IN1; mov.b32 %a, %f;", "1.5"),
        ("st.global.f32 [%rd1], 1.5;", "mov.u32 %a, IN1;", None),
        ("st.global.f64 [%rd1], 0d3FF0000000000000;", "mov.u32 %a, IN1;", None),
    ],
)
def test_constants_are_read_as_the_probe_wants_them(instruction, snippet, value, tmp_path):
    file = simple("st.global", snippet)
    data = kernel(f"st.global.b32 [%rd1], %r1; {instruction} ret;")
    woven = check(data, file, tmp_path=tmp_path) if "64 [" not in instruction else weave(data, "k", [file])
    assert [site.woven for site in woven.sites] == [2 - (value is None)]
    assert value is None or any(line.endswith(f", {value};") for line in lines(woven))


@pytest.mark.parametrize("count", ["0x10", "020", "0b10000", "16U"])
def test_registers_are_counted_in_any_base(count, tmp_path):
    body = f".reg .b32 %x<{count}>; ld.global.b32 %x15, [%rd1]; ret;"
    check(kernel(body), simple("ld.global", "mov.b32 %a, OUT;", "after"), tmp_path=tmp_path)


def test_elements_of_a_vector(tmp_path):
    text = '[x]\nposition = "ld.global.v4"\ndatamodel = "thread:16"\nafter = "SAVE.f32 {OUT.x, OUT.y, OUT.z, OUT.w};"\n'
    body = "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];\nret;"
    found = lines(check(kernel(body), probe(text), tmp_path=tmp_path))
    assert [line for line in found if re.search(r"mov\.b32 %\w+, %f[1-4];", line)][3].endswith("%f4;")


@pytest.mark.parametrize(
    "load", ["u8 %r1", "u16 %r1", "f32 %f1", "f64 %rd1", "v2.u64 {%rd1, %rd2}", "v4.b32 {%r1, %r2, %r3, %f4}"]
)
def test_loads_of_all_widths_are_timed(load, tmp_path):
    file = load_probes(find_probe("inst_latency"))
    woven = check(kernel(f"ld.global.{load}, [%rd1];\nret;"), file, tmp_path=tmp_path)
    assert [site.woven for site in woven.sites if site.position == "ld.global"] == [1]


@pytest.mark.parametrize("type_", ["u8", "s8", "b8"])
def test_registers_of_a_byte_are_read_by_cvt(type_, tmp_path):
    """As CUB's inline assembly has them; of all opcodes only ld, st and cvt take one."""
    body = f"{{ .reg .{type_} d; ld.global.{type_} d, [%rd1]; cvt.u8.u8 d, d; st.global.{type_} [%rd1], d; }} ret;"
    check(kernel(body), load_probes(find_probe("inst_latency")), tmp_path=tmp_path)
    for wanted, when in (("u32", "after"), ("s32", "after")):
        snippet = f"cvt.{wanted}.{wanted[0]}16 %a, OUT;"
        assert not check(kernel(body), simple("ld.global", snippet, when), tmp_path=tmp_path).misfits
    assert not check(kernel(body), simple("cvt", "cvt.u32.u16 %a, IN1;", "after"), tmp_path=tmp_path).misfits


def test_a_copy_that_fills_up_has_the_bytes_that_it_reads(tmp_path):
    file = simple("cp.async.ca:cp.async.cg", "mov.u32 %a, BYTES;")
    for operands, expected in {
        "16": "mov.u32 %gpt_0_a, 16;",
        "16, %r2": "mov.b32 %gpt_b32_0, %r2;",
        "16, 4": "mov.u32 %gpt_0_a, 4;",
        "16, %p1": "selp.u32 %gpt_b32_0, 0, 16, %p1;",
    }.items():
        body = f"cp.async.cg.shared.global [%r1], [%rd1], {operands};\nret;"
        assert expected in lines(check(kernel(body, HEAD.replace("8.0", "8.3")), file, tmp_path=tmp_path))


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {W}, [%rd1];", "add.u32 %gpt_0_read, %gpt_0_read, 16;"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {W}, [%rd1];", "add.u32 %gpt_0_read, %gpt_0_read, 16;"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {W}, [%rd1];", None),
        (
            "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%rd1], {%r1, %r2, %r3, %r4};",
            "add.u32 %gpt_0_written, %gpt_0_written, 16;",
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];",
            "add.u64 %gpt_0_bulk, %gpt_0_bulk, ",
        ),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r4], %r2, [%r3];", None),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;", "add.u64 %gpt_0_expected, %gpt_0_expected, "),
    ],
)
def test_what_bytes_of_global_memory_are(body, counted, tmp_path):
    """Copies between shared memories are none; one thread may wait for more than 4 GiB of copies."""
    file = load_probes(find_probe("gmem_bytes"))
    data = kernel(body.replace("W", ", ".join(f"%r{n}" for n in range(8))) + "\nret;", HEAD.replace("8.0", "8.3"))
    if counted is None:
        with pytest.raises(LeftAlone, match="no probe applies to it"):
            weave(data, "k", [file])
    else:
        found = lines(check(data, file, tmp_path=tmp_path))
        assert any(counted in line for line in found)


def test_a_pragma_stays_with_its_instruction(tmp_path):
    body = 'mov.u32 %r2, 0;\n.pragma "used_bytes_mask 0xf";\nld.global.u32 %r1, [%rd1];\nret;'
    head = HEAD.replace("8.0", "8.3")
    woven = weave(kernel(body, head), "k", [simple("ld.global", "mov.u32 %a, SMID;")])
    assert '.pragma "used_bytes_mask 0xf";\nld.global' in woven.data.decode()


@pytest.mark.parametrize("level", ["thread", "warp", "block"])
@pytest.mark.parametrize("cap", ["1", "5", '"dynamic"'])
@pytest.mark.parametrize("position", ["ld.global", "kernel"])
@pytest.mark.parametrize("count", [False, True])
def test_every_way_to_save(level, cap, position, count, tmp_path):
    value = "ADDR" if position == "ld.global" else "BLOCK"
    file = probe(SAVES.format(level=level, cap=cap, position=position, when="before", value="SMID")
                 .replace("{{", "{").replace("}}", "}").replace("ADDR", value))  # fmt: skip
    for sample in ("", 'sample = "block/3"\n', 'sample = "warp/8"\n'):
        sampled = probe(file.source.replace("before =", f"{sample}before ="))
        woven = check(
            kernel("@%p2 ld.global.u32 %r1, [%rd1];\n@%p1 ret;\nret;"), sampled, tmp_path=tmp_path, count=count
        )
        assert half_written(lines(woven)) == []
        text = "\n".join(lines(woven))
        assert ("st.global.b32" in text) != count
        assert woven.maps[0].capacity == (0 if count else {"1": 1, "5": 5}.get(cap, ((64 << 20) - 8) // 24))


def test_counts_are_added_up_in_the_warp_where_the_target_can(tmp_path):
    text = (
        '[map.m]\ntype = "total"\nlevel = "warp"\ndata = {a = "u64", b = "u32", c = "f32", d = "u64"}\n'
        '[probe.x]\nposition = "kernel"\nlevel = "warp"\nafter = """.reg .u64 %a; .reg .u32 %b; .reg .f32 %c;\n'
        'mov.u64 %a, 1; mov.u32 %b, 2; mov.f32 %c, 0f3F800000;\nSAVE [m] {%a, %b, %c, %b};"""\n'
    )
    found = lines(check(kernel("@%p1 exit;\nret;"), probe(text), tmp_path=tmp_path))
    assert sum("redux.sync.add.u32" in line for line in found) == 2 * (3 + 1 + 2)
    old = weave(kernel("@%p1 exit;\nret;", HEAD.replace("sm_90", "sm_75")), "k", [probe(text)])
    assert not any("redux" in line for line in lines(old))
    assembled(old.data, tmp_path, "sm_75")


def test_each_thread_adds_to_a_total_of_its_own(tmp_path):
    file = probe(
        '[map.m]\ntype = "total"\nlevel = "thread"\ndata = {a = "u32"}\n'
        '[probe.x]\nposition = "ld.global"\nlevel = "thread"\nbefore = "SAVE [m] {BYTES};"\n'
    )
    found = lines(check(kernel("@%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1];\nret;"), file, tmp_path=tmp_path))
    added = [line.partition("[")[0] for line in found if "red" in line]
    assert added == ["@%p1 red.global.add.u64 ", "@%p1 red.global.add.u32 "]


@pytest.mark.parametrize("snippet", ["@%q bra out;\nadd.u32 %x, %x, 1;\nout:",
                                     "mov.u32 %i, 0;\nagain: add.u32 %x, %x, %i;\nadd.u32 %i, %i, 1;\n"
                                     "setp.lt.u32 %q, %i, 4;\n@%q bra again;"])  # fmt: skip
def test_labels_of_a_snippet_that_computes_with_its_registers_alone(snippet, tmp_path):
    file = probe(
        '[map.m]\ndata = {a = "u32"}\n[probe.x]\nposition = "ld.global"\n'
        f'before = """.reg .b32 %x, %i; .reg .pred %q;\n{snippet}"""\n'
        '[probe.end]\nposition = "kernel"\nafter = "SAVE [m] {%x};"\n'
    )
    check(kernel("ld.global.u32 %r1, [%rd1];\nld.global.u32 %r2, [%rd1+4];\nret;"), file, tmp_path=tmp_path)


def test_a_kernel_that_is_declared_first_gets_its_parameters_there_too(tmp_path):
    entry = ".visible .entry k(.param .u64 p)"
    data = kernel("ld.global.u32 %r1, [%rd1];\nret;").replace(entry.encode(), f"{entry};\n{entry}".encode())
    check(data, simple("ld.global", "mov.u32 %a, SMID;"), tmp_path=tmp_path)


def test_loops_and_labels_of_a_snippet(tmp_path):
    snippet = ".reg .pred %q;\nmov.u32 %a, 0;\nagain:\nadd.u32 %a, %a, 1;\nsetp.lt.u32 %q, %a, 4;\n@%q bra again;"
    woven = check(kernel("@%p1 ld.global.u32 %r1, [%rd1];\nld.global.u32 %r1, [%rd1];\nret;"),
                  simple("ld.global", snippet), tmp_path=tmp_path)  # fmt: skip
    found = [line for line in lines(woven) if line in "{}" or line.startswith("$gpt")]
    assert found == ["{", "$gpt_0_0_again:", "}"] * 2


def test_python_probes(tmp_path):
    from gpt.probe.read.python import compile_python

    file = compile_python(
        "from neutrino import probe, Map\nimport neutrino.language as nl\n"
        '@Map(level="warp", type="array", size=16, cap=1)\nclass m:\n    a: nl.u64\n    b: nl.u32\n    c: nl.u32\n'
        'start: nl.u64 = 0\n@probe(pos="kernel", level="warp", before=True)\ndef begin():\n    start = nl.clock()\n'
        '@probe(pos="kernel", level="warp")\ndef end():\n    m.save(start, nl.u32(nl.clock() - start), nl.cuid())\n',
        "probe.py",
    )
    check(kernel("@%p1 ret;\nret;"), file, tmp_path=tmp_path)


def test_a_name_of_python_that_only_branches_set_is_not_kept():
    from gpt.probe.read.python import compile_python

    file = compile_python(
        "from neutrino import probe, Map\nimport neutrino.language as nl\n"
        '@Map(level="thread", type="array", size=16, cap=4)\nclass m:\n    a: nl.u64\n'
        '@probe(pos="ld.global", level="thread", before=True)\ndef look():\n    if nl.addr > 77:\n'
        "        a = nl.addr\n    else:\n        a = nl.clock()\n    m.save(a)\n",
        "probe.py",
    )
    found = lines(weave(kernel("@%p1 ld.global.u32 %r1, [%rd1];\nret;"), "k", [file]))
    assert half_written(found) == [] and sum("look_a" in line for line in found) == 3


# Device functions

FUNCTIONS = (
    HEAD
    + """.func (.param .b32 r) leaf(.param .b32 x);
.func nothing() { .reg .pred %p<2>; .reg .b64 %rd<2>; @%p1 exit; st.global.u32 [%rd1], 1; ret; }
.func (.param .b32 r) leaf(.param .b32 x)
{
    .reg .b32 %r<3>; .reg .b64 %rd<3>; .reg .pred %p<3>;
    ld.global.u32 %r1, [%rd1];
    st.param.b32 [r], %r1;
    @%p1 ret;
    call.uni nothing, ();
    call nothing;
}
.func (.param .b32 r) pure(.param .b32 x) { .reg .b32 %r; mov.u32 %r, 1; st.param.b32 [r], %r; ret; }
.visible .entry k(.param .u64 p)
{
    .reg .b32 %r<3>;
    { .param .b32 x; st.param.b32 [x], 5; .param .b32 r;
      call.uni (r), leaf, (x);
      call (r), pure, (x); // pure(x)
      ld.param.b32 %r1, [r]; }
    ret;
}
"""
).encode()


def test_functions_with_probes_get_a_parameter(tmp_path):
    counter = probe(
        '[map.m]\ntype = "total"\nlevel = "warp"\ndata = {a = "u64", b = "u32"}\n[probe.begin]\nposition = "kernel"\n'
        'level = "warp"\nbefore = """.reg .u64 %a;\n.reg .pred %q;\nmov.u64 %a, 0;\nsetp.eq.u64 %q, %a, 0;"""\n'
        '[probe.access]\nposition = "ld.global:st.global"\nlevel = "warp"\nbefore = "@%q add.u64 %a, %a, BYTES;"\n'
        '[probe.end]\nposition = "kernel"\nlevel = "warp"\nafter = "SAVE [m] {%a, SMID};"\n'
    )
    woven = check(FUNCTIONS, counter, tmp_path=tmp_path)
    text = woven.data.decode()
    assert len(re.findall(r"\.param \.b64 gpt_in", text)) == 3  # leaf twice, nothing once
    assert text.count("%gpt_state //@") + text.count("%gpt_state) //@") == 3
    assert text.count("selp.u32") == text.count("st.local.b64") > 3  # the predicate goes with the counter


def test_a_function_whose_address_is_taken_is_no_place_for_probes():
    text = FUNCTIONS.replace(b"ret;\n}\n.func (.param .b32 r) pure", b"ret;\n}\n.func (.param .b32 r) pure")
    text = text.replace(
        b"    .reg .b32 %r<3>;\n    {", b"    .reg .b32 %r<3>; .reg .b64 %f;\n    mov.u64 %f, leaf;\n    {"
    )
    with pytest.raises(LeftAlone, match="function 'leaf', whose address is taken"):
        weave(text, "k", [simple("ld.global", "mov.u32 %a, 1;")])


def test_function_that_another_kernel_calls():
    leaf = ".func leaf() { .reg .b32 %r<3>; .reg .b64 %rd<3>; ld.global.u32 %r1, [%rd1]; ret; }\n"
    data = kernel("call leaf; ret;", f"{HEAD}{leaf}.entry child() {{ call leaf; ret; }}\n")
    with pytest.raises(LeftAlone, match=r"function 'leaf', .* which another kernel calls"):
        weave(data, "k", [simple("ld.global", "mov.u32 %a, 1;")])


# What is left alone


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (kernel("ret;"), "no probe applies to it"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", HEAD.replace("8.0", "6.1")), "PTX 6.1 is older than 6.2"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", HEAD.replace("64\n", "32\n")), "its addresses have 32 bits"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret; //@"), "it is woven already, or '//@' in a comment looks so"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", params=".param .b8 p[4348]"), "no room for 1 more parameters"),
        (kernel("ld.global.u32 %r1, [%rd1]; ret;", params=".param .align 64 .b8 p[4345]"), "no room for 1 more"),
    ],
)
def test_kernels_left_alone(data, reason):
    with pytest.raises(LeftAlone, match=reason):
        weave(data, "k", [simple("ld.global", "mov.u32 %a, 1;")])


@pytest.mark.parametrize(
    ("body", "snippet", "reason"),
    [
        ("atom.global.add.u32 _, [%rd1], 1;", "mov.u32 %a, OUT;", "has no OUT"),
        ("atom.global.add.u32 %r1, [%rd1], 1;", "mov.u32 %a, IN4;", "has no IN4"),
        ("atom.global.cas.b64 %rd1, [%rd1], 1, 2;", "mov.u32 %a, OUT;", "64 bits"),
        ("atom.global.add.u32 %x, [%rd1], 1;", "mov.u32 %a, OUT;", "not a register of a plain type"),
    ],
)
def test_instructions_left_alone(body, snippet, reason, tmp_path):
    woven = weave(kernel(f"atom.global.add.u32 %r1, [%rd1], 1, 2, 3, 4;\n{body}\nret;"), "k",
                  [simple("atom.global", snippet, "after")])  # fmt: skip
    assert [reason in fact for fact in woven.misfits] == [True]
    assert [(site.matched, site.woven) for site in woven.sites] == [(2, 1)]


def test_probes_that_share_nothing_do_not_wait_for_each_other():
    sched = '[sched]\nposition = "kernel"\ndatamodel = "warp:8"\nbefore = ".reg .u64 %t;mov.u64 %t, TIME;"\n'
    sched += 'after = "SAVE.u64 {%t};"\n'
    count = '[count]\nposition = "ld.global"\nbefore = ".reg .u64 %n;add.u64 %n, %n, 1;"\n'
    total = '[total]\nposition = "kernel"\ndatamodel = "warp:8"\nafter = "SAVE.u64 {%n};"\n'
    woven = weave(kernel("ret;"), "k", [probe(sched + count + total)])
    assert [placed.map.name for placed in woven.maps] == ["sched"]
    woven = weave(kernel("ld.global.u32 %r1, [%rd1]; ret;"), "k", [probe(sched + count + total)])
    assert [placed.map.name for placed in woven.maps] == ["sched", "total"]
    with pytest.raises(LeftAlone):
        weave(kernel("ret;"), "k", [probe(count + total)])


def test_what_nobody_verified_costs_a_site_at_most():
    for saved in ("SAVE [other] {%a};", "SAVE [m] {%a, %a};"):
        file = simple("ld.global", f"mov.u32 %a, 1;\n{saved}")
        with pytest.raises(LeftAlone, match="no probe applies to it"):
            weave(kernel("ld.global.u32 %r1, [%rd1]; ret;"), "k", [file])


def test_what_nobody_verified_is_woven_as_it_is(tmp_path):
    data = kernel("ld.global.u32 %r1, [%rd1]; ret;")
    woven = check(data, simple("ld.global", "mov.u32 %a, %r2; membar.gl; exit;"), tmp_path=tmp_path)
    assert {"membar.gl;", "exit;"} <= {*lines(woven)}
    for snippet in ("cvt.u32.u64 %a, ADDR.x;", "mov.u32 %a, IN1.q;", "mov.u32 %a, IN1.x.y;"):
        with pytest.raises(LeftAlone, match=r"no probe applies to it: .* has no "):
            weave(data, "k", [simple("ld.global", snippet)])


# Weaving and back

STATEMENTS = [
    "add.s32 %r1, %r2, 3;", "@%p1 bra L1;", "@!%p2 exit;", "ret;", "@%p3 ret;", "L1:", "{", "}", ".loc 1 2 3\n",
    "ld.global.u32 %r1, [%rd1+-4];", "@%p1 st.global.v2.u32 [%rd1], {%r1, %r2};", "ld.u32 %r1,[%rd1];",
    "ld.volatile .global\n.u64 %rd1, [%rd1];", "bar.sync 0;", "atom.global.add.u32 %r1, [%rd1], %r1;",
    '.pragma "nounroll";', "// ld.global.u32 %r1, [%rd1];\n", "/* ret; */", "add.f32 %f1, %f1, %f2;",
    "{ .param .b32 x; st.param.b32 [x], %r1; call f, (x); }", "call f , ( %r1 );", "mma.sync.aligned.m16n8k8.row.col."
    "f16.f16.f16.f16 {%r1, %r2}, {%r3, %r4}, {%r5}, {%r1, %r2};", "setp.lt.u32 %p1|%p2, %r1, 5;", ".reg .b32 %t;",
    "mov.u64 %rd1, va /* , */ + 8;", "ld.global.u32 %r1, [va\n+4];", "@%p1 st.global.u32 [vb], %r1;",
    "ld.u32 %r1,[vc];",
]  # fmt: skip
VARIABLES = [
    ".global .u32 va;", ".visible .global .b8 vb[5] = {1, 2, // \\\n 3};", ".global .u64 va, vb = 1, /* \xe9 */ vc;",
    ".const .u64 c1 = generic(va)+4;", ".const .u64 c2[2] = { vb , 1 };", ".extern .const .b8 c3[8];",
    ".shared .u32 vc;",
]  # fmt: skip
BLANKS = st.sampled_from(["", " ", "\n", "\n\n", "\t", " // c\n", "/* { */", "\r\n"])
FILES = [
    simple("kernel", "mov.u32 %a, SMID;", "after"),
    simple("ld.global:st.global:ld.generic", "cvt.u32.u64 %a, ADDR;", "after"),
    simple("bra", "selp.u32 %a, 1, 0, PRED;", more="no_pred = true"),
    simple("label:L1:line:*:2:func:f", "mov.u32 %a, ACTIVE;"),
    simple("setp:add.f32:mma:atom", "mov.u32 %a, 7;", "after"),
]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STATEMENTS), BLANKS), max_size=20),
    st.lists(st.tuples(st.sampled_from(STATEMENTS), BLANKS), max_size=8),
    st.lists(st.sampled_from(FILES), min_size=1, max_size=3, unique_by=id),
    BLANKS,
    st.lists(st.tuples(st.sampled_from(VARIABLES), BLANKS), max_size=3),
)
def test_weaving_and_back(body, function, files, blank, variables):
    """Also where the program makes no sense: weaving does not look at what it has no business with."""
    text = lambda parts: balanced("".join(statement + blank for statement, blank in parts))  # noqa: E731
    declared = "".join(variable + blank for variable, blank in variables)
    data = (
        f'{HEAD}.file 1 "a.cu"\n{declared}.func f{blank}(.param .b32 x){blank}{{{text(function)}{blank}}}\n'
        f".entry{blank or ' '}k{blank}(.param .u64 p{blank}){{{REGISTERS}{text(body)}{blank}}}{blank}"
    ).encode("latin-1")
    try:
        woven = weave(data, "k", files)
    except LeftAlone as error:
        assert re.match("no probe applies|'v[abc]' is declared twice", error.fact)
        return
    assert unweave(woven.data) == data
    assert woven.data.count(MARK.encode()) >= len(woven.maps)
    shared = [variable.name for variable in woven.variables if variable.space == "global"]
    left = re.sub(r"//[^\n]*|/\*.*?\*/", "", woven.data.decode("latin-1"))
    assert not any(re.search(rf"\b{name}\b", left) for name in shared)
    assert all(site.woven <= site.matched for site in woven.sites)


def balanced(text):
    """The text with braces that no other matches taken out."""
    out, depth = [], 0
    for piece in re.split(r"(/\*.*?\*/|//[^\n]*\n|[{}])", text):
        if piece == "}" and not depth:
            continue
        depth += (piece == "{") - (piece == "}")
        out.append(piece)
    return "".join(out) + "}" * depth


PIECES = [
    "", "{", "}", "(", "]", ";", ",", '"', "/*", "//", "\n", "%r1", "@%p1 ", "<", "9" * 30, ".reg", ".func f", ":", "_",
    "-", "[9999999999]", "<99999999>", ".loc 1 99999999999999999999 0\n", ".loc 1 x 0\n", ".file 1\n", '.file x "y"\n',
    ".version 8\n", ".version x.y\n", ".version 99999.1\n", ".target sm_\n", ".address_size 32\n", "\xff", "\0", ".v4",
    "call f, (%r1, ", "brx.idx %r1, t;", ".visible .entry k(", ".param .align 99999999 .b8 p[", ".callprototype _ ();",
]  # fmt: skip
PROGRAM = kernel(
    '.file 1 "a.cu"\n.loc 1 2 3\nld.global.v2.u32 {%r1, %r2}, [%rd1+-4];\n@%p1 bra L1;\ncall f, (%r1);\nL1:\n'
    "atom.global.add.u32 %r1, [%rd1], %r1;\nsetp.lt.u32 %p1|%p2, %r1, 5;\nbar.sync 0;\n@!%p2 exit;\nret;"
).decode()
PROGRAM = PROGRAM.replace(".visible", ".func f(.param .b32 x) { ret; }\n.visible", 1)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_mutated_programs_are_woven_or_refused(data):
    text = PROGRAM
    files = data.draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique_by=id))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(PIECES)) + text[at + data.draw(st.integers(0, 12)) :]
    try:
        module = scan_module(text.encode("latin-1"), "m")
        for entry in module.entries:
            original = prune(module, [entry.name])
            woven = weave(original, entry.name, files, "m")
            assert unweave(woven.data) == original
    except GptError as error:
        assert error.where.startswith("m") or isinstance(error, LeftAlone)
        assert "\n" not in error.fact


def test_a_call_without_end_is_malformed():
    torn = PROGRAM.replace("call f, (%r1);", "call f, (%r1;").encode()
    with pytest.raises(MalformedError, match="no end to") as caught:
        weave(torn, "k", [simple("func:f", "mov.u32 %a, ACTIVE;")], "m")
    assert caught.value.where == f"m:{torn[: torn.index(b'(%r1')].count(10) + 1}:9"


@given(st.binary(max_size=200))
def test_unweaving_what_was_never_woven(data):
    if MARK.encode() not in data:
        assert unweave(data) == data


def test_bulk_bytes_are_those_of_global_memory(tmp_path):
    """A bulk copy between the shared memories of a cluster reads none of it, and a wait moves nothing."""
    wait = "mbarrier::complete_tx::bytes"
    body = (
        f"cp.async.bulk.shared::cluster.global.{wait} [%r1], [%rd1], 64, [%r2];"
        f"cp.async.bulk.shared::cluster.shared::cta.{wait} [%r1], [%r2], 64, [%r2];"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64; cp.async.bulk.wait_group 0; ret;"
    )
    file = load_probes(find_probe("gmem_bytes"))
    woven = check(kernel(body), file, tmp_path=tmp_path)
    assert [(site.matched, site.woven) for site in woven.sites if "bulk" in site.probe] == [(2, 2)]


def test_what_is_no_instruction_is_told_with_its_place_in_the_module():
    first = kernel("ret;").replace(b"entry k", b"entry first")
    data = first + kernel("ld.global.u32 %r1,\n [%rd1]];\nret;").removeprefix(HEAD.encode())
    module = scan_module(data, "x")
    with pytest.raises(MalformedError) as caught:
        weave(pruned(module, ["k"]), "k", [simple("ld.global", "mov.u32 %a, 1;")])
    assert (caught.value.where, caught.value.fact) == (module.where(data.index(b"]]") + 1), "PTX: unexpected ']'")


@pytest.mark.parametrize(
    ("head", "snippet", "reason"),
    [
        ("8.8 sm_90", "min.f32 %f, %f, %f, %f;", "needs sm_100, and it is for sm_90"),
        ("8.7 sm_100", "min.f32 %f, %f, %f, %f;", "needs PTX 8.8, and it is PTX 8.7"),
        ("8.8 sm_100", "min.f32 %f, %f, %f, %f;", None),
        ("7.0 sm_80", "mov.u32 %a, %cluster_ctarank;", "'%cluster_ctarank' needs PTX 7.8, and it is PTX 7.0"),
        ("8.0 sm_80", "mov.u32 %a, %clusterid.x;", "'%clusterid' needs sm_90"),
        ("7.8 sm_90", "mov.u32 %a, %clusterid.x;", None),
        ("6.2 sm_70", "cvt.u64.u32 %d, %a; mov.u64 %d, %current_graph_exec;", "needs PTX 8.0"),
        ("6.5 sm_75", "tanh.approx.f32 %f, %f;", "needs PTX 7.0"),
        ("7.0 sm_52", "tanh.approx.f32 %f, %f;", "needs sm_75, and it is for sm_52"),
    ],
)
def test_a_module_that_is_too_old_for_a_probe_is_left_alone(head, snippet, reason, tmp_path):
    version, target = head.split()
    data = kernel("ld.global.u32 %r1, [%rd1];\nret;", HEAD.replace("8.0", version).replace("sm_90", target))
    file = simple("ld.global", f".reg .f32 %f; .reg .u64 %d;\n{snippet}")
    verify(file)
    if reason is None:
        assembled(weave(data, "k", [file]).data, tmp_path, target)
        return
    with pytest.raises(LeftAlone) as caught:
        weave(data, "k", [file])
    assert caught.value.fact.startswith("probe.toml:8: ") and reason in caught.value.fact


def test_a_total_of_doubles_needs_sm_60(tmp_path):
    text = '[map.m]\ntype = "total"\ndata = {a = "f64"}\n[probe.x]\nposition = "kernel"\nbefore = "SAVE [m] {1.0};"\n'
    data = kernel("ret;", HEAD.replace("sm_90", "sm_53"))
    with pytest.raises(LeftAlone, match="a total of type f64 needs sm_60"):
        weave(data, "k", [probe(text)])
    assembled(weave(data.replace(b"sm_53", b"sm_60"), "k", [probe(text)]).data, tmp_path)


@pytest.mark.parametrize("snippet", ["bfe.u32 %a, %a, BYTES, IN2;", "cvt.rna.tf32.f32 %b, IN1;", "abs.f16x2 %b, IN1;"])
def test_a_constant_of_the_program_where_ptxas_takes_none(snippet, tmp_path):
    body = "st.global.b32 [%rd1], 5;\nst.global.b32 [%rd1], %r1;\ncp.async.bulk.prefetch.L2.global [%rd1], 4096;\nret;"
    position = "cp.async.bulk.prefetch" if "BYTES" in snippet else "st.global"
    file = simple(position, f".reg .b32 %b;\n{snippet.replace('IN2', '5')}")
    verify(file)
    check(kernel(body), file, tmp_path=tmp_path)


def test_a_function_whose_arguments_vary_in_number(tmp_path):
    """More parameters would go after an array that must be the last one."""
    text = f"""{HEAD}.func (.param .b32 r) sum(.param .b32 n, .param .align 8 .b8 va[])
{{ .reg .b32 %r; .reg .b64 %rd; mov.u64 %rd, va; ld.global.u32 %r, [%rd]; st.param.b32 [r], %r; ret; }}
.visible .entry k() {{ .reg .b64 %rd; .reg .b32 %r;
{{ .param .b32 n; .param .align 8 .b8 va[8]; .param .b32 r;
st.param.b32 [n], 1; st.param.b64 [va], %rd; call (r), sum, (n, va); ld.param.b32 %r, [r]; }}
ld.global.u32 %r, [%rd]; ret; }}"""
    file = simple("ld.global", "mov.u32 %a, BYTES;")
    with pytest.raises(LeftAlone, match="probes in function 'sum', whose arguments vary in number"):
        weave(text.encode(), "k", [file])
    check(text.replace("ld.global.u32 %r, [%rd]; st", "st").encode(), file, tmp_path=tmp_path)


@pytest.mark.parametrize("source", ["%smid", "%clock64", "SMID", "CLOCK", "%tid.x"])
def test_a_special_register_is_converted_to_a_float(source, tmp_path):
    """ptxas takes one in a conversion between integers only."""
    type_ = "u64" if "clock" in source.lower() else "u32"
    file = simple("ld.global", f".reg .f32 %f;\ncvt.rn.f32.{type_} %f, {source}; mov.b32 %a, %f;")
    verify(file)
    check(kernel("ld.global.u32 %r1, [%rd1];\nret;"), file, tmp_path=tmp_path)
