"""ptxas's options, its output, and its failures."""

import os
import re
import signal
import subprocess
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.asm import processes, reports
from gpt.asm.backend import Faults, Options
from gpt.asm.find import Tools
from gpt.asm.ptxas import Runner
from gpt.asm.reports import Report, read_reports
from gpt.asm.targets import GpuTarget
from gpt.base.errors import GptError
from gpt.formats.nvinfo import read_needs
from gpt.probe.ptx.edits import marked
from tests import cuda
from tests.asm import fake
from tests.asm.modules import CALLER, HEAD, PLAIN, RECURSIVE, RICH, hungry, probed
from tests.tiers import examples

SM_80, SM_90 = GpuTarget(8, 0, ""), GpuTarget(9, 0, "")


@pytest.fixture(scope="module")
def tool():
    return Tools(None).choose((8, 0), SM_90)


@pytest.fixture
def bad(tmp_path):
    """Return `bad(does)`, which assembles PLAIN with a ptxas that behaves like this."""

    def run(does, timeout=30.0):
        path = fake.ptxas(tmp_path / "bad", does)
        tool = Tools(str(path)).choose((8, 0), SM_90)
        return Runner(timeout).assemble(tool, PLAIN.encode(), "m", SM_90, Options())

    return run


def faults(tool, text, name="m", target=SM_90):
    with pytest.raises(Faults) as found:
        Runner(60).assemble(tool, text if isinstance(text, bytes) else text.encode(), name, target, Options())
    return found.value.found


# What it makes


@pytest.mark.parametrize("target", [SM_80, SM_90, GpuTarget(10, 0, "a")])
def test_the_report_and_the_cubin_agree(tool, target):
    for text in (PLAIN, RICH, hungry(100)):
        done = Runner(60).assemble(tool, text.encode(), "m", target, Options())
        needs = read_needs(done.cubin)
        assert list(needs) and not done.warnings
        for kernel, need in needs.items():
            report = done.reports[kernel]
            assert report.registers == need.registers > 0
            assert need.stack >= report.frame
            assert need.constant >= 0x160


def test_resource_needs_are_read_from_the_cubin(tool):
    done = Runner(60).assemble(tool, RICH.encode(), "m", SM_80, Options())
    needs = read_needs(done.cubin)
    assert done.reports["shares"].shared == 400 and done.reports["calls"].shared == 0
    assert needs["shares"].constant - needs["calls"].constant == 200
    assert needs["shares"].stack == 0


def test_messages_of_a_ptxas_with_another_name_are_parsed(tool, tmp_path):
    """Messages begin with the executable's name, which may be Triton's ptxas-blackwell."""
    (tmp_path / "ptxas-other").symlink_to(cuda.tool("ptxas"))
    other = tool._replace(path=str(tmp_path / "ptxas-other"))
    one, two = (Runner(60).assemble(t, RICH.encode(), "m", SM_80, Options()) for t in (tool, other))
    assert one.reports == two.reports != {}
    assert faults(other, HEAD + "\n.visible .entry k() { bogus; }\n")[0][0] == "m:5"


def test_spills_are_reported_and_limits_passed_on(tool):
    text = hungry(100).encode()
    free = Runner(60).assemble(tool, text, "m", SM_90, Options())
    tight = Runner(60).assemble(tool, text, "m", SM_90, Options(registers=32))
    assert free.reports["hungry"].spills == 0 < 4 * 60 < tight.reports["hungry"].spills
    assert tight.reports["hungry"].registers == 32 < free.reports["hungry"].registers
    slow = Runner(60).assemble(tool, text, "m", SM_90, Options(level=0))
    assert slow.cubin != free.cubin


def test_spills_of_device_functions_count_for_the_kernel(tool):
    """A recursive function saves registers; each of two kernels has a copy of it."""
    text = HEAD + RECURSIVE + "".join(CALLER.format(name=name) for name in ("one", "two"))
    done = Runner(60).assemble(tool, text.encode(), "m", SM_90, Options())
    assert done.reports["one"].spills == done.reports["two"].spills > 0
    assert set(done.reports) == {"one", "two"}
    apart = Runner(60).assemble(tool, text.encode(), "m", SM_90, Options(relocatable=True))
    assert apart.reports["one"].spills == 0


def test_relocatable_code_may_lack_what_others_define(tool):
    text = HEAD + ".extern .global .b32 there;\n.visible .entry k(.param .u64 p) { .reg .b32 %r<2>;\n"
    text += "ld.global.u32 %r1, [there]; st.global.u32 [there], %r1; ret; }\n.extern .func (.param .b32 r) f();\n"
    text += ".visible .entry g() { .param .b32 x; call (x), f; ret; }\n"
    assert any("(-c makes relocatable code)" in fact for _, fact in faults(tool, text))
    done = Runner(60).assemble(tool, text.encode(), "m", SM_90, Options(relocatable=True))
    assert {"k", "g"} == set(read_needs(done.cubin))


def test_the_cubin_depends_on_nothing_but_text_and_options(tool):
    made = {Runner(60).assemble(tool, RICH.encode(), name, SM_90, Options()).cubin for name in ("a", "b", "a")}
    assert len(made) == 1


def test_performance_notes_are_warnings(bad, tool, tmp_path):
    """ptxas prints this for a wgmma whose accumulators are read too early."""
    (tmp_path / "real.ptx").write_text(PLAIN)
    real = f"{tool.path} -arch=sm_90 {tmp_path}/real.ptx -o $out"
    note = "(C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    done = bad(f"{real}; echo 'ptxas info    : {note} in k'; echo 'ptxas warning : odd'")
    assert done.warnings == [("m", f"for sm_90: {note} in k"), ("m", "for sm_90: odd")]


# Faults of the text


def test_a_fault_has_its_line(tool):
    assert faults(tool, HEAD + "\n.visible .entry k() { bogus; }\n") == [
        ("m:5", "Not a name of any known instruction: 'bogus'")
    ]


def test_a_fault_in_a_line_of_a_probe_has_the_line_of_the_probe(tool):
    text = probed(PLAIN).replace("%smid", "%no_such")
    assert {where for where, _ in faults(tool, text)} == {"probes/count.toml:4"}


def test_a_module_may_say_where_its_lines_come_from(tool):
    text = HEAD + '# 100 "foo.c"\n.visible .entry k() {\nbogus;\n}\n'
    assert faults(tool, text) == [("m: foo.c:101", "Not a name of any known instruction: 'bogus'")]


@given(name=st.text(st.characters(), min_size=1), line=st.integers(1, 10**9))
def test_any_probe_file_name_round_trips(name, line):
    lines = [b"first", marked("add;", name, line).encode("ascii"), b"//@ x", b"; //@ :4", b"//@ a:b"]
    assert lines[1].count(b"\n") == 1
    assert reports._place(lines, 2, "m") == f"{name}:{line}"
    assert [reports._place(lines, n, "m") for n in (0, 1, 3, 4, 5, 6)] == [f"m:{n}" for n in (0, 1, 3, 4, 5, 6)]


def test_megabytes_of_faults_are_a_few_lines(tool):
    text = HEAD + ".visible .entry k() {\n" + "".join(f"bogus{n};\n" for n in range(20000)) + "}\n"
    found = faults(tool, text)
    assert len(found) == reports.MAX_LINES + 1
    assert found[0] == ("m:5", "Not a name of any known instruction: 'bogus0'")
    assert found[-1] == ("m", "for sm_90: 19995 more of these")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\0", b"hello", b"\xff" * 1000, b"{" * 100_000, HEAD.encode()[:20], (HEAD + ".entry k() {").encode()),
        (HEAD + ".visible .entry k() {" + "{" * 50_000).encode(),
        (HEAD + '.file 1 "' + "x" * 100_000).encode(),
    ],
)
def test_damaged_ptx_is_refused(tool, text):
    for where, fact in faults(tool, text):
        assert where.partition(":")[0] == "m" and 0 < len(fact) < 400


@settings(max_examples=examples(40))
@given(st.data())
def test_mutants_are_assembled_or_refused(tool, data):
    text = bytearray(RICH.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        done = Runner(60).assemble(tool, bytes(text), "m", SM_90, Options())
    except GptError as error:
        assert error.fact and "\n" not in error.fact
    else:
        read_needs(done.cubin)


# Faults of ptxas


def test_a_crash(bad):
    with pytest.raises(GptError, match=r"^m: ptxas 13\.0\.1 crashes on it, for sm_90: SIGSEGV$") as found:
        bad("kill -SEGV $$")
    assert found.value.status == 1


@pytest.mark.parametrize(
    ("does", "fact"),
    [
        ("exit 7", "status 7, no message"),
        ("echo hello there; echo more; exit 255", "status 255, hello there"),
        ("head -c 100000 /dev/zero; exit 1", "status 1"),
        ("exit 0", "wrote no cubin"),
        ("echo no elf > $out", "wrote no cubin"),
        ("head -c 100 /dev/zero > $out", "wrote no cubin"),
        ("mkdir $out", "wrote no cubin"),
        ("ln -s /dev/zero $out", "wrote no cubin"),
    ],
)
def test_failing_without_a_word_of_sense(bad, does, fact):
    with pytest.raises(GptError) as found:
        bad(does)
    assert type(found.value) is GptError and fact in found.value.fact and found.value.where == "m"
    assert len(found.value.fact) < 500


def test_output_without_end_is_cut_off(bad, monkeypatch):
    monkeypatch.setattr(processes, "MAX_OUTPUT", 1 << 16)
    begin = time.monotonic()
    with pytest.raises(Faults) as found:
        bad("yes 'ptxas module.ptx, line 1; error   : odd' | head -c 20000000; exit 1")
    assert found.value.found[0] == ("m:1", "odd")
    with pytest.raises(GptError, match="took over"):
        bad("exec yes", timeout=0.5)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    "does", ["sleep 300", "sleep 300 & exit 0", "exec >/dev/null 2>&1; sleep 300", "trap '' TERM; sleep 300"]
)
def test_hanging_process_is_killed_with_its_children(bad, monkeypatch, does):
    groups = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            groups.append(self.pid)

    begin = time.monotonic()
    with (
        monkeypatch.context() as patched,
        pytest.raises(GptError, match=r"m: ptxas 13\.0\.1 took over 0\.5 s|wrote no cubin"),
    ):
        patched.setattr(processes.subprocess, "Popen", Noted)
        bad(does, timeout=0.5)
    assert time.monotonic() - begin < 20
    assert groups and not any(alive(group) for group in groups)


def alive(group):
    """Return whether any process of a group is still running. A killed process may take a moment to end."""
    for _ in range(100):
        listed = subprocess.run(["ps", "-eo", "pgid,stat"], capture_output=True, text=True, check=True).stdout
        if not re.search(rf"^ *{group} +[^Z]", listed, re.M):
            return False
        time.sleep(0.05)
    return True


def test_stop_ends_what_runs_and_nothing_is_left(bad, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    path = fake.ptxas(tmp_path / "bad", f"echo $$ > {tmp_path}/pid; sleep 300")
    tool = Tools(str(path)).choose((8, 0), SM_90)
    runner, failed = Runner(600), []

    def work():
        with pytest.raises(GptError):
            runner.assemble(tool, PLAIN.encode(), "m", SM_90, Options())
        failed.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    runner.stop()
    thread.join(20)
    assert failed and not alive(int((tmp_path / "pid").read_text()))
    assert os.listdir(tmp_path / "temporary") == []
    with pytest.raises(GptError, match="stopped"):
        runner.assemble(tool, PLAIN.encode(), "m", SM_90, Options())


def test_signals_have_names():
    assert processes.signal_name(signal.SIGABRT) == "SIGABRT" and processes.signal_name(63) == "signal 63"


# What -v says


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from([
    b"ptxas info    : Compiling entry function 'k' for 'sm_90'", b"ptxas info    : Function properties for k",
    b"    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads", b"\xff\n\n", b"ptxas info    : ",
    b"ptxas info    : Used 24 registers, used 1 barriers, 400+16 bytes smem, 360 bytes cmem[0]", b"ptxas",
])))  # fmt: skip
def test_reports_are_read_from_whatever_there_is(lines):
    for report in read_reports(b"\n".join(lines)).values():
        assert report.frame == 8 and report.spills % 16 == 0 and report.spills
        assert (report.registers, report.shared) in ((None, None), (24, 416))


def test_a_report_in_the_words_of_older_versions():
    output = b"""\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_70'
ptxas info    : Function properties for _Z1kPf
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    assert read_reports(output) == {"_Z1kPf": Report(16, 28, 32, 1024)}
    assert read_reports(output, relocatable=True) == {"_Z1kPf": Report(16, 20, 32, 1024)}
