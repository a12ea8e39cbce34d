"""Weaving inserts parameters, registers, records, and probes in functions."""

import math
import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.probe.lower.emit import Emitter
from gpt.probe.ptx.weave import LeftAlone, unweave, weave
from gpt.probe.read.load import load_all
from gpt.ptx.prune import pruned
from gpt.ptx.scan import scan_module
from gpt.stream import rooms
from tests import cuda
from tests.probe.ptx.woven import HEAD, SAVES, assembled, check, half_written, kernel, lines, probe, simple
from tests.tiers import every


def test_added_parameters_come_last(tmp_path):
    data = kernel(
        "ret;", params=".param .u32 a, .param .align 16 .b8 b[20], .param .u8 c, .param .u64 .ptr .align 256 d"
    )
    woven = check(data, simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert [param[:2] for param in woven.params] == [(0, 4), (16, 20), (36, 1), (40, 8)]
    assert [param[:2] for param in woven.added] == [(48, 8)]


def test_sizes_of_parameters_are_in_any_base(tmp_path):
    params = ".param .b8 a[010], .param .align 020 .b8 b[4U], .param .b8 c[WARP_SZ], .param .align 4U .b8 d[0b11], "
    params += ".param .align 0x10 .b8 e[0x10]"
    woven = check(kernel("ret;", params=params), simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert [param[:2] for param in woven.params] == [(0, 8), (16, 4), (20, 32), (52, 3), (64, 16)]


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


@pytest.mark.parametrize("target", every(3, ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]))
@pytest.mark.parametrize(
    "params",
    [
        # The parameters of a kernel that takes a CUtensorMap.
        ".param .u32 a, .param .align 64 .b8 b[128], .param .u8 c",
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
    assert [(number, *param[:2]) for number, param in enumerate(woven.params + woven.added)] == expected


@pytest.mark.parametrize("head", ["k", "k()", "k( )", "k(\n)"])
def test_kernels_without_parameters(head, tmp_path):
    data = f"{HEAD}.entry {head} {{ ret; }}".encode()
    woven = check(data, simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert woven.params == [] and woven.added[0].offset == 0


def test_parts_of_a_record_wait_for_the_last(tmp_path):
    file = probe(
        '[x]\nposition = "bar.sync"\ndatamodel = "warp:16:4"\nbefore = "SAVE.u64 {CLOCK};"\n'
        'after = "SAVE.u32 {SMID, LANEID};"\n'
    )
    woven = check(kernel("bar.sync 0;\nret;"), file, tmp_path=tmp_path)
    before, after = woven.data.decode().split("bar.sync")
    assert "st.global" not in before and re.findall(r"st\.global\S*", after) == ["st.global.b64", "st.global.v2.b32"]
    assert woven.maps[0].unit_size == 8 + 4 * 16


SIZES = ("4", "8", "84", "48", "88", "844", "884", "8844", "4444", "44444", "848", "2244", "12484", "8444", "188")


@pytest.mark.parametrize(("sizes", "level", "cap"), every(7, [*product(SIZES, ("thread", "warp"), ("1", "3"))]))
def test_a_record_is_stored_whole_and_nothing_is_stored_where_it_is_not_aligned(sizes, level, cap, tmp_path):
    of_size = {"1": ("u8",), "2": ("u16",), "4": ("s32", "f32", "u32"), "8": ("f64", "u64", "s64")}
    kinds = [of_size[size][n % len(of_size[size])] for n, size in enumerate(sizes)]
    ones = {"f32": "0f3F800000", "f64": "0d3FF0000000000000"}
    registers = "".join(f".reg .{kind} %a{n}; mov.{kind} %a{n}, {ones.get(kind, n)};\n" for n, kind in enumerate(kinds)
                        if kind != "u8")  # fmt: skip
    values = [f"%a{n}" if size != "1" else "7" for n, size in enumerate(sizes)]
    data = ", ".join(f'f{n} = "{kind}"' for n, kind in enumerate(kinds))
    file = probe(
        f'[map.m]\nlevel = "{level}"\ncap = {cap}\ndata = {{{data}}}\n[probe.x]\nposition = "kernel"\n'
        f'level = "{level}"\nafter = """{registers}SAVE [m] {{{", ".join(values)}}};"""\n'
    )
    woven = weave(kernel("ret;"), "k", [file])
    assembled(woven.data, tmp_path)
    (placed,) = woven.maps
    apart = math.gcd(placed.unit_size, placed.map.stride if cap == "3" else 0)
    stores = [
        (int(at), int(vector or 1) * int(bits) // 8)
        for vector, bits, at in re.findall(r"st\.global(?:\.v(\d))?\.b(\d+) \[\S+\+(\d+)\]", "\n".join(lines(woven)))
    ]
    assert all(at % size == apart % size == 0 for at, size in stores)
    counted = list(range(8)) if cap == "1" else []  # it is 1, in the same stores
    stored = counted + sorted(8 + field.offset + n for field in placed.map.fields for n in range(field.size))
    assert sorted(byte for at, size in stores for byte in range(at, at + size)) == stored


@pytest.mark.parametrize(
    ("block", "read", "extents"),
    [
        ("128", "x", "128, 1, 1"),
        ("32, 4", "xy", "32, 4, 1"),
        ("4, 1, 8", "xz", "4, 1, 8"),
        ("0x20, 1", "x", "32, 1, 1"),
    ],
)
def test_declared_block_sizes_are_constants(block, read, extents, tmp_path):
    data = kernel("ret;").replace(b"u64 p)", f"u64 p)\n.reqntid {block}\n".encode())
    found = "\n".join(lines(check(data, simple("kernel", "mov.u32 %a, SMID;", "after"), tmp_path=tmp_path)))
    assert set(re.findall(r"%tid\.(.)", found)) == set(read) and "%ntid" not in found
    assert re.search(rf"mov\.u32 \S+, {math.prod(map(int, extents.split(', ')))};", found)
    assert set(re.findall(r"%ctaid\.(.)", found)) == set("xyz")


def test_a_kernel_record_does_not_replace_the_count_of_others(tmp_path):
    """All groups of lanes in the warp may add to the count at once, and no addition is lost."""
    file = probe(
        '[map.m]\nlevel = "warp"\ndata = {a = "u32"}\n'
        '[probe.end]\nposition = "kernel"\nlevel = "warp"\nafter = "SAVE [m] {SMID};"\n'
        '[probe.load]\nposition = "ld.global"\nlevel = "warp"\nbefore = "SAVE [m] {LANEID};"\n'
    )
    for body, counts in (("ret;", 1), ("ld.global.u32 %r1, [%rd1];\nret;", 2)):
        found = lines(check(kernel(body), file, tmp_path=tmp_path))
        assert sum(bool(re.search(r"(red|atom)\.global\.add\.u64", line)) for line in found) == counts
    alone = probe(file.source.split("[probe.load]")[0])
    assert not any("red." in line or "atom." in line for line in lines(check(kernel("ret;"), alone, tmp_path=tmp_path)))


def test_names_of_probes_never_meet(tmp_path):
    """Names are kept apart, whatever tables and labels are called in probes and in the program."""
    halves = 'position = "kernel"\ndatamodel = "warp:16"\nbefore = "SAVE.u64 {CLOCK};"\nafter = "SAVE.u32 {%smid};"\n'
    file = probe("".join(f'["{name}"]\n{halves}' for name in ("a-b", "a.b", "\u00e9", "\u00e8", "x\\ny")))
    labels = "@%p bra %L; bra $L; %L: mov.u32 %a, 1; $L: mov.u32 %a, 2; _L: mov.u32 %a, 3;"
    jumps = simple("ld.global", f".reg .pred %p; .reg .b32 %rd1, $rd1, _rd1; setp.ne.u32 %p, BYTES, 4; {labels}")
    check(kernel("$gpt1_L: ld.global.u32 %r1, [%rd1];\nret;"), file, jumps, tmp_path=tmp_path)


def test_program_uses_all_probe_names(tmp_path):
    taken = " ".join(f"gpt{n or ''}_ 98765432{n:03}" for n in range(1001))
    woven = check(kernel(f"// {taken}\nret;"), simple("kernel", "mov.u32 %a, SMID;"), tmp_path=tmp_path)
    assert "%gpt1001_0_a" in woven.data.decode()


def test_a_pragma_stays_with_its_instruction(tmp_path):
    body = 'mov.u32 %r2, 0;\n.pragma "used_bytes_mask 0xf";\nld.global.u32 %r1, [%rd1];\nret;'
    head = HEAD.replace("8.0", "8.3")
    woven = weave(kernel(body, head), "k", [simple("ld.global", "mov.u32 %a, SMID;")])
    assert '.pragma "used_bytes_mask 0xf";\nld.global' in woven.data.decode()


@pytest.mark.parametrize(
    ("level", "cap", "position", "count"),
    every(
        5,  # `make test` runs each value several times
        [*product(("thread", "warp", "block"), ("1", "5", '"dynamic"'), ("ld.global", "kernel"), (False, True))],
    ),
)
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
        assert ("st.global.b32" in text or "st.global.cs" in text) != count
        assert woven.maps[0].capacity == (0 if count else {"1": 1, "5": 5}.get(cap, ((64 << 20) - rooms.HEAD) // 32))


def test_excluded_warp_takes_one_branch(tmp_path):
    text = (
        '[probe.x]\nposition = "ld.global"\nlevel = "thread"\n{sample}before = """.reg .u64 %a;\n'
        'add.u64 %a, BLOCK, 1;\nSAVE [m] {{%a}};"""\n[map.m]\nlevel = "thread"\ndata = {{a = "u64"}}\n'
    )
    for sample, branches in (('sample = "block/6"\n', 1), ('sample = "warp/8"\n', 1), ("", 0)):
        data = kernel("ld.global.u32 %r1, [%rd1];\nret;")
        found = lines(check(data, probe(text.format(sample=sample)), tmp_path=tmp_path))
        assert [line.split()[1] for line in found if "bra" in line] == ["bra.uni"] * branches


@given(st.integers(0, (1 << 64) - 1), st.one_of(st.integers(1, 100), st.integers(1, (1 << 63) - 1)))
def test_a_remainder_needs_no_division(value, divisor):
    code = Emitter("t_")
    registers = {"%n": value}
    result = code.remainder("%n", divisor)
    for line in code.lines:
        opcode, to, *operands = re.findall(r"[\w.%]+", line)
        left, right = (registers[one] if one[0] == "%" else int(one) for one in operands)
        registers[to] = {
            "and.b64": left & right,
            "shr.u64": left >> min(right, 64),
            "add.u64": left + right,
            "sub.u64": left - right,
            "mul.lo.u64": left * right,
            "mul.hi.u64": left * right >> 64,
        }[opcode] % (1 << 64)
    assert registers[result] == value % divisor


def test_the_number_of_a_block_at_an_exit_has_64_bits_where_32_do_not(tmp_path):
    """ptxas would use the lower 32 bits of a larger constant. The buffer of 2^32 counts would have 32 GB."""
    fields, values = ", ".join(f'f{number} = "u64"' for number in range(32)), ", ".join(["TIME"] * 32)
    large = probe(
        f'[map.m]\nlevel = "block"\ncap = {1 << 24}\ndata = {{{fields}}}\n'
        f'[probe.x]\nposition = "kernel"\nlevel = "block"\nafter = "SAVE [m] {{{values}}};"'
    )
    small = simple("kernel", "mov.u32 %a, SMID;", "after")
    for file, count, short in ((small, False, True), (small, True, False), (large, False, False)):
        woven = check(kernel("ret;"), file, tmp_path=tmp_path, count=count)
        size = woven.maps[0].unit_size
        opcodes = [line.split()[0] for line in lines(woven) if f" {size}, " in line]
        assert opcodes == ["mad.wide.u32" if short else "mad.lo.u64"]


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


def test_kernel_declared_first_gets_parameters_in_declaration(tmp_path):
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


def test_python_name_set_only_in_branches_is_not_kept():
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
    assert len(re.findall(r"\.param \.b64 gpt_in", text)) == 3  # `leaf` twice, `nothing` once
    assert text.count("%gpt_state //@") + text.count("%gpt_state) //@") == 3
    assert text.count("selp.u32") == text.count("st.local.b64") > 3  # the predicate goes with the counter


def test_address_taken_function_gets_no_probe():
    text = FUNCTIONS.replace(b"ret;\n}\n.func (.param .b32 r) pure", b"ret;\n}\n.func (.param .b32 r) pure")
    text = text.replace(
        b"    .reg .b32 %r<3>;\n    {", b"    .reg .b32 %r<3>; .reg .b64 %f;\n    mov.u64 %f, leaf;\n    {"
    )
    with pytest.raises(LeftAlone, match="it takes the address of function 'leaf'"):
        weave(text, "k", [simple("ld.global", "mov.u32 %a, 1;")])


def test_function_that_another_kernel_calls():
    leaf = ".func leaf() { .reg .b32 %r<3>; .reg .b64 %rd<3>; ld.global.u32 %r1, [%rd1]; ret; }\n"
    data = kernel("call leaf; ret;", f"{HEAD}{leaf}.entry child() {{ call leaf; ret; }}\n")
    with pytest.raises(LeftAlone, match="cannot have another parameter: 'leaf', which another kernel calls"):
        weave(data, "k", [simple("ld.global", "mov.u32 %a, 1;")])


def test_function_with_variable_arguments(tmp_path):
    """An array without a size must be the last parameter, so none can be added after it."""
    text = f"""{HEAD}.func (.param .b32 r) sum(.param .b32 n, .param .align 8 .b8 va[])
{{ .reg .b32 %r; .reg .b64 %rd; mov.u64 %rd, va; ld.global.u32 %r, [%rd]; st.param.b32 [r], %r; ret; }}
.visible .entry k() {{ .reg .b64 %rd; .reg .b32 %r;
{{ .param .b32 n; .param .align 8 .b8 va[8]; .param .b32 r;
st.param.b32 [n], 1; st.param.b64 [va], %rd; call (r), sum, (n, va); ld.param.b32 %r, [r]; }}
ld.global.u32 %r, [%rd]; ret; }}"""
    file = simple("ld.global", "mov.u32 %a, BYTES;")
    with pytest.raises(LeftAlone, match="cannot have another parameter: 'sum', whose arguments vary in number"):
        weave(text.encode(), "k", [file])
    check(text.replace("ld.global.u32 %r, [%rd]; st", "st").encode(), file, tmp_path=tmp_path)


ALIASED = f"""{HEAD}.global .align 4 .u32 acc;
.visible .func (.param .b32 r) second(.param .b32 a);
.visible .func (.param .b32 r) third(.param .b32 a);
.visible .func (.param .b32 r) first(.param .b32 a)
{{ .reg .b32 x<3>; ld.param.b32 x0, [a]; mul.lo.s32 x1, x0, 3; st.global.u32 [acc], x1; st.param.b32 [r], x1; ret; }}
.visible .func (.param .b32 r) between(.param .b32 a)
{{ .reg .b32 x; ld.param.b32 x, [a];
{{ .param .b32 b; .param .b32 s; st.param.b32 [b], x; call (s), third, (b); ld.param.b32 x, [s]; }}
st.param.b32 [r], x; ret; }}
.visible .entry k(.param .u64 o) {{ .reg .b32 x<3>; mov.u32 x0, %tid.x; CALLS ret; }}
.visible .entry other(.param .u64 o) {{ .reg .b32 x<3>; mov.u32 x0, %tid.x; CALLS ret; }}
.alias second, first; .alias third , first ;
"""
ALIAS_CALL = "{{ .param .b32 a; .param .b32 r; st.param.b32 [a], x0; call (r), {}, (a); ld.param.b32 x0, [r]; }}"


@pytest.mark.parametrize(
    "names", [["second"], ["second", "first"], ["between"], ["second", "third", "between", "first"]]
)
def test_function_with_other_name(tmp_path, names):
    """The parameter is added to its prototypes and calls under both names, even if two kernels call it."""
    text = ALIASED.replace("CALLS", "".join(map(ALIAS_CALL.format, names))).encode()
    for entry in ("k", "other"):
        alone = pruned(scan_module(text), [entry])
        woven = weave(alone, entry, [simple("st.global", "mov.u32 %a, 1;")])
        assembled(woven.data, tmp_path)
        assert unweave(woven.data).decode() == alone.text
        assert [(site.matched, site.woven) for site in woven.sites] == [(1, 1)]
        calls = len(names) + ("between" in names)
        assert woven.data.decode().count("%gpt_state //@") + woven.data.decode().count("%gpt_state) //@") >= calls


def test_function_named_like_an_instruction(tmp_path):
    """Debug builds have functions such as sin, which calls sin.approx."""
    text = f"""{HEAD}.func (.reg .f32 r) sin(.reg .b64 p) {{ ld.global.f32 r, [p]; ret; }}
.func (.param .f32 r) cos(.param .b64 p)
{{ .reg .b64 x; .reg .f32 f; ld.param.b64 x, [p]; ld.global.f32 f, [x]; sin.approx.f32 f, f; cos.approx.f32 f, f;
st.param.f32 [r], f; ret; }}
.visible .entry k() {{ .reg .b64 x; .reg .f32 f; cos.approx.f32 f, 0f3F800000; mov.b64 x, 0;
{{ .param .b64 p; .param .f32 r; st.param.b64 [p], x; call (r), cos, (p); ld.param.f32 f, [r]; }} ret; }}"""
    alone = pruned(scan_module(text.encode()), ["k"])
    woven = weave(alone, "k", [simple("ld.global", "mov.u32 %a, 1;")])
    assembled(woven.data, tmp_path)
    assert [(site.matched, site.woven) for site in woven.sites] == [(1, 1)]


def test_a_record_of_a_log_is_stored_in_sixteen_bytes_at_a_time(tmp_path):
    """A warp's shared 32 bytes take two stores; only values that differ take one for each lane."""
    woven = check(kernel("ld.global.u32 %r1, [%rd1];\nret;"), *load_all(["dmat"]), tmp_path=tmp_path)
    (placed,) = woven.maps
    assert placed.stored == ("lane", "clock", "equal", "sm") and placed.layout.size == 32
    functions = dict(
        re.findall(r"^\t?\.func.*? gpt_([a-z]+)_\w+\(.*?^\t?\{(.*?)^\t?\}", woven.data.decode(), re.M | re.S)
    )
    assert sorted(functions) == ["room", "size", "unusual"]
    stores = [re.findall(r"st\.global\.cs(\S*) \[\S+?\+(\d+)\]", text) for text in (
        woven.data.decode().partition(".entry")[2], functions["size"], functions["unusual"]
    )]  # fmt: skip
    shared = [(".v4.b32", "0"), (".v4.b32", "16")]
    assert stores == [shared, [], [*shared, (".b32", "32"), (".b32", "32")]]


def test_many_places_share_code(tmp_path):
    """ptxas takes a second for a hundred of them otherwise."""
    sizes = {}
    for count in (1, 9, 90):
        body = "\n".join(f"ld.global.u32 %r1, [%rd1+{4 * n}];" for n in range(count))
        woven = weave(kernel(f"{body}\nret;"), "k", load_all(["dmat"]))
        assert unweave(woven.data) == woven.original
        assembled(woven.data, tmp_path)
        sizes[count] = len(lines(woven))
    assert sizes[90] - sizes[9] < 30 * 81 < 81 * sizes[1]
