"""The meaning of helpers in woven code: operands of all types, sizes and forms, from before the instruction."""

import re

import pytest

from gpt.probe.ptx.weave import LeftAlone, weave
from gpt.probe.read.load import find_probe, load_probes
from gpt.probe.verify import verify
from tests.probe.ptx.woven import HEAD, check, kernel, lines, probe, simple


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


def test_addresses_in_registers_of_any_size(tmp_path):
    """Addresses in shared memory have 32 bits, so nothing is carried into the upper half."""
    body = (
        "mov.u32 %r1, 8; .reg .b16 h; cvt.u16.u32 h, %r1; ld.shared.u32 %r2, [h+4]; ld.shared.u32 %r3, [%r1+-4]; ret;"
    )
    woven = check(kernel(body), simple("ld.shared", "cvt.u32.u64 %a, ADDR;"), tmp_path=tmp_path)
    text = "\n".join(lines(woven))
    assert woven.sites[0].woven == 2 and "cvt.u32.u16" in text and len(re.findall(r"add\.u32 .*0\+", text)) == 2


def test_guard_changed_by_its_instruction(tmp_path):
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
def test_name_of_other_type_register_in_other_scope(other, tmp_path):
    """Inline assembly has such scopes: { .reg .f32 r0; .. }."""
    scopes = f"{{ .reg .f32 r; add.f32 r, %f1, %f2; }} {{ .reg .{other} r; mov.b32 r, %r1; }}"
    woven = check(kernel(f"{scopes} ret;"), simple("add.f32", "mov.b32 %a, OUT;", "after"), tmp_path=tmp_path)
    assert not woven.misfits


@pytest.mark.parametrize("other", ["b64", "pred", "v2 .f32"])
def test_name_of_other_size_register_in_other_scope(other, tmp_path):
    scopes = f"{{ .reg .f32 r; add.f32 r, %f1, %f2; }} {{ .reg .{other} r; }} add.f32 %f3, %f1, %f2;"
    woven = check(kernel(f"{scopes} ret;"), simple("add.f32", "mov.b32 %a, OUT;", "after"), tmp_path=tmp_path)
    assert "'r', which is not a register of a plain type" in woven.misfits[0]
    access = kernel("{ .reg .b64 r; ld.global.u32 %r1, [r]; } { .reg .b32 r; } ld.global.u32 %r1, [%rd1]; ret;")
    woven = check(access, simple("ld.global", "cvt.u32.u64 %a, ADDR;"), tmp_path=tmp_path)
    assert "the address '[r]'" in woven.misfits[0]


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
def test_helpers_read_packed_and_unpacked_values_of_mov(instruction, helper, made, tmp_path):
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
def test_branch_target_is_not_an_operand(position, instruction, helper):
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
    """CUB's inline assembly uses registers that are larger than the type; only ld, st and cvt accept them."""
    body = f"{{ .reg .{type_} d; ld.global.{type_} d, [%rd1]; cvt.u8.u8 d, d; st.global.{type_} [%rd1], d; }} ret;"
    check(kernel(body), load_probes(find_probe("inst_latency")), tmp_path=tmp_path)
    for wanted, when in (("u32", "after"), ("s32", "after")):
        snippet = f"cvt.{wanted}.{wanted[0]}16 %a, OUT;"
        assert not check(kernel(body), simple("ld.global", snippet, when), tmp_path=tmp_path).misfits
    assert not check(kernel(body), simple("cvt", "cvt.u32.u16 %a, IN1;", "after"), tmp_path=tmp_path).misfits


def test_zero_filling_copy_has_the_bytes_it_reads(tmp_path):
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
def test_gmem_bytes_counts_only_global_memory(body, counted, tmp_path):
    """Copies between shared memories don't count; one thread may wait for more than 4 GiB of copies."""
    file = load_probes(find_probe("gmem_bytes"))
    data = kernel(body.replace("W", ", ".join(f"%r{n}" for n in range(8))) + "\nret;", HEAD.replace("8.0", "8.3"))
    if counted is None:
        with pytest.raises(LeftAlone, match="no probe applies to it"):
            weave(data, "k", [file])
    else:
        found = lines(check(data, file, tmp_path=tmp_path))
        assert any(counted in line for line in found)


def test_bulk_bytes_are_those_of_global_memory(tmp_path):
    """A bulk copy between the shared memories of a cluster doesn't read global memory, and a wait moves nothing."""
    wait = "mbarrier::complete_tx::bytes"
    body = (
        f"cp.async.bulk.shared::cluster.global.{wait} [%r1], [%rd1], 64, [%r2];"
        f"cp.async.bulk.shared::cluster.shared::cta.{wait} [%r1], [%r2], 64, [%r2];"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64; cp.async.bulk.wait_group 0; ret;"
    )
    file = load_probes(find_probe("gmem_bytes"))
    woven = check(kernel(body), file, tmp_path=tmp_path)
    assert [(site.matched, site.woven) for site in woven.sites if "bulk" in site.probe] == [(2, 2)]


@pytest.mark.parametrize("snippet", ["bfe.u32 %a, %a, BYTES, IN2;", "cvt.rna.tf32.f32 %b, IN1;", "abs.f16x2 %b, IN1;"])
def test_a_constant_of_the_program_where_ptxas_takes_none(snippet, tmp_path):
    body = "st.global.b32 [%rd1], 5;\nst.global.b32 [%rd1], %r1;\ncp.async.bulk.prefetch.L2.global [%rd1], 4096;\nret;"
    position = "cp.async.bulk.prefetch" if "BYTES" in snippet else "st.global"
    file = simple(position, f".reg .b32 %b;\n{snippet.replace('IN2', '5')}")
    verify(file)
    check(kernel(body), file, tmp_path=tmp_path)


@pytest.mark.parametrize("source", ["%smid", "%clock64", "SMID", "CLOCK", "%tid.x"])
def test_a_special_register_is_converted_to_a_float(source, tmp_path):
    """ptxas accepts special registers in conversions between integers only."""
    type_ = "u64" if "clock" in source.lower() else "u32"
    file = simple("ld.global", f".reg .f32 %f;\ncvt.rn.f32.{type_} %f, {source}; mov.b32 %a, %f;")
    verify(file)
    check(kernel("ld.global.u32 %r1, [%rd1];\nret;"), file, tmp_path=tmp_path)
