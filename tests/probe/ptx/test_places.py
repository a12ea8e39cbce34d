"""Places without probes: after code that never returns, for results that arrive later, and where nothing would be
saved; and kernels that need functions of other modules.
"""

import subprocess

import pytest

from gpt.probe.ptx.weave import LeftAlone, unweave, weave
from gpt.probe.read.load import find_probe, load_probes
from tests import cuda
from tests.probe.ptx.woven import HEAD, check, kernel, lines, probe, simple


def counts(woven):
    return [(site.matched, site.woven) for site in woven.sites]


def saved_where(woven):
    """Return the guards of the counts of records."""
    return [line.split()[0] for line in lines(woven) if "st.global.u64" in line]


# After what leaves


@pytest.mark.parametrize("opcode", ["ret", "exit", "trap", "bra", "brx"])
def test_nothing_runs_after_what_leaves(opcode, tmp_path):
    target = {"bra": " L", "brx": ".idx %r1, T"}.get(opcode, "")
    body = f"T: .branchtargets L;\n@%p1 {opcode}{target};\nadd.u32 %r1, %r1, 1;\n{opcode}{target};\nL: ret;"
    woven = check(kernel(body), simple(f"{opcode}.*:{opcode}", "mov.u32 %a, SMID;", "after"), tmp_path=tmp_path)
    assert saved_where(woven) == ["@!%p1"]
    place = "brx.*" if opcode == "brx" else opcode
    assert woven.misfits == [f"probe 'x' at '{place}': 'after' an unguarded '{opcode}' never runs"]


@pytest.mark.parametrize("guard", ["%p1", "!%p1"])
def test_after_a_branch_that_was_not_taken(guard, tmp_path):
    data = kernel(f"@{guard} bra L;\nadd.u32 %r1, %r1, 1;\nL: ret;")
    (where,) = saved_where(check(data, simple("bra", "mov.u32 %a, SMID;", "after"), tmp_path=tmp_path))
    assert where == ("@!%p1" if guard == "%p1" else "@%p1")
    (where,) = saved_where(check(data, simple("bra", "mov.u32 %a, SMID;", "before"), tmp_path=tmp_path))
    assert where == f"@{guard}"
    woven = check(data, simple("bra", "selp.u32 %a, 1, 0, PRED;", "after", "no_pred = true"), tmp_path=tmp_path)
    assert saved_where(woven) == ["st.global.u64"]


def test_probes_before_a_branch_still_run(tmp_path):
    both = probe(
        '[map.m]\ncap = 9\ndata = {a = "u32"}\n[probe.x]\nposition = "bra"\nbefore = "SAVE [m] {SMID};"\n'
        'after = "SAVE [m] {LANEID};"\n'
    )
    woven = check(kernel("bra L;\nL: ret;"), both, tmp_path=tmp_path)
    text = woven.data.decode()
    assert counts(woven) == [(1, 1)] and len(woven.misfits) == 1
    assert "%smid" in text and "%laneid" not in text.partition("bra L")[2]


def test_the_end_of_a_line(tmp_path):
    body = ".loc 1 2 3\nadd.u32 %r1, %r1, 1;\n@%p1 ret;\n.loc 1 3 3\nbra L;\nL: .loc 1 4 4\nret;"
    data = kernel(body).replace(b".visible", b'.file 1 "a.cu"\n.visible')
    for line, misfits in ((2, 0), (3, 1), (4, 1)):
        file = simple(f"line:a.cu:{line}", "mov.u32 %a, SMID;", "after")
        if not misfits:
            assert not check(data, file, tmp_path=tmp_path).misfits
            continue
        with pytest.raises(LeftAlone, match=r"'after' an unguarded '(bra|ret)' never runs"):
            weave(data, "k", [file])


# Results that come later


@pytest.mark.parametrize(
    ("position", "instruction", "waits"),
    [
        (
            "wgmma.mma_async",
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, 1, 1, 1, 0, 0;",
            "wgmma.wait_group",
        ),
        ("tcgen05.ld", "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];", "tcgen05.wait::ld"),
    ],
)
def test_result_not_written_yet(position, instruction, waits):
    for out in ("OUT", "OUT.x"):
        with pytest.raises(LeftAlone, match=f"has no OUT yet: its result is there after {waits}"):
            weave(kernel(f"{instruction}\nret;"), "k", [simple(position, f"mov.b32 %a, {out};", "after")])
    assert counts(weave(kernel(f"{instruction}\nret;"), "k", [simple(position, "mov.b32 %a, SMID;", "after")]))[0] == (
        1,
        1,
    )


# Kernels in which nothing would be saved


@pytest.mark.parametrize("body", ["L: bra L;", "trap;", "L: bar.sync 0; ld.global.u32 %r1, [%rd1]; bra L;"])
@pytest.mark.parametrize("name", ["block_sched", "warp_sched", "gmem_bytes", "sync_wait"])
def test_kernel_that_never_ends(body, name):
    with pytest.raises(LeftAlone, match=r"no probe (that saves )?applies to it"):
        weave(kernel(body), "k", [load_probes(find_probe(name))])


def test_probes_without_a_match_are_reported():
    for name in ("warp_progress", "program_progress"):  # one probe sets the start, and one saves elsewhere
        with pytest.raises(LeftAlone) as caught:
            weave(kernel("ret;"), "k", [load_probes(find_probe(name))])
        assert caught.value.fact == "no probe applies to it"


@pytest.mark.parametrize("position", ["kernel:func:*", "func:*:kernel"])
def test_function_equal_to_kernel_matches_in_any_order(position, tmp_path):
    file = simple(position, "mov.u32 %a, SMID;", "before")
    woven = check(kernel("ret;"), file, tmp_path=tmp_path)
    assert [(site.position, site.woven) for site in woven.sites if site.matched] == [("func:*", 1)]


def test_probes_that_save_nothing_do_not_apply():
    with pytest.raises(LeftAlone, match="no probe that saves applies to it"):
        weave(kernel("ld.global.u32 %r1, [%rd1]; ret;"), "k",
              [probe('[x]\nposition = "ld.global"\nbefore = ".reg .u32 %a; mov.u32 %a, 1;"\n')])  # fmt: skip
    halves = (
        '[x]\nposition = "bra"\ndatamodel = "thread:16"\nbefore = "SAVE.u64 {CLOCK};"\nafter = "SAVE.u64 {TIME};"\n'
    )
    with pytest.raises(LeftAlone, match=r"no probe that saves applies to it: .* an unguarded 'bra' never runs"):
        weave(kernel("bra L; L: ret;"), "k", [probe(halves)])


@pytest.mark.parametrize("name", ["inst_latency", "value_range"])
def test_an_unfit_register_leaves_no_half_of_a_probe(name, tmp_path):
    """Registers whose sizes differ between uses are known when the code is generated."""
    body = "{ .reg .f32 r; add.f32 r, %f1, %f2; ld.global.f32 r, [%rd1]; } { .reg .b64 r; }"
    file = load_probes(find_probe(name))
    with pytest.raises(LeftAlone, match=r"no probe applies to it: probe '.*' at '.*': an instruction has 'r'"):
        weave(kernel(f"{body} ret;"), "k", [file])
    both = f"{body} add.f32 %f1, %f1, %f2; ld.global.u32 %r1, [%rd1]; ret;"
    woven = check(kernel(both), file, tmp_path=tmp_path)
    assert [pair for pair in counts(woven) if pair != (1, 1)] == [(2, 1)] and len(woven.misfits) == 1
    found = lines(woven)
    assert sum("mov.u64 %gpt_0_issued" in line for line in found) == (name == "inst_latency")


# Functions of other modules

CALLS = """.extern .func (.param .b32 r) elsewhere(.param .b64 a);
.extern .func (.param .b32 r) unused(.param .b64 a);
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.extern .func (.param .b64 r) malloc(.param .b64 a);
.extern .func free(.param .b64 a);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.func here(.param .b64 a) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [a]; ld.global.u64 %rd1, [%rd1]; MORE ret; }
"""
BODY = """{ .param .b64 a; .param .b64 b; .param .b32 r; .param .b64 s; .param .b32 c; .param .b64 d;
.param .b64 e; st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], %r1; st.param.b64 [d], %rd1;
st.param.b64 [e], %rd1; call.uni (r), vprintf, (a, b); call.uni (s), malloc, (a); call.uni free, (a);
call.uni here, (a); @%p1 call.uni __assertfail, (a, b, c, d, e); }
ret;"""
MORE = "{ .param .b32 r; .param .b64 x; st.param.b64 [x], %rd1; call.uni (r), elsewhere, (x); }"


def test_functions_of_the_driver_are_always_there(tmp_path):
    data = kernel(BODY, HEAD + CALLS.replace("MORE", "").partition("\n")[2].partition("\n")[2])
    assert counts(check(data, simple("ld.global", "mov.u32 %a, SMID;"), tmp_path=tmp_path)) == [(1, 1)]


def test_functions_of_other_modules_are_linked(tmp_path):
    from gpt.ptx.prune import prune
    from gpt.ptx.scan import scan_module

    module = scan_module(kernel(BODY, HEAD + CALLS.replace("MORE", MORE)), "m")
    data = prune(module, ["k"])
    file = simple("ld.global", "mov.u32 %a, SMID;")
    with pytest.raises(LeftAlone, match="needs a function that is defined elsewhere: 'elsewhere' \\(-c weaves it"):
        weave(data, "k", [file])
    woven = weave(data, "k", [file], relocatable=True)
    assert unweave(woven.data) == data
    (tmp_path / "k.ptx").write_bytes(woven.data)
    command = [cuda.tool("ptxas"), "-c", "-arch=sm_90", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize(("position", "counted"), [("kernel", "st.global.b64"), ("func:k", "st.global.u64")])
@pytest.mark.parametrize("guard", ["%p1", "!%p1"])
def test_the_end_of_a_kernel_is_for_the_threads_that_leave(position, counted, guard, tmp_path):
    data = kernel(f"@{guard} exit;\n@!%p1 bra L;\nL: ret;")
    woven = check(data, simple(position, "mov.u32 %a, SMID;", "after"), tmp_path=tmp_path)
    first, last = (line for line in lines(woven) if counted in line)  # the lines that count records
    assert first.startswith(f"@{guard} ") and last.startswith(counted)
