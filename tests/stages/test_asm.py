"""gpt-asm as a user runs it."""

import ctypes
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt.asm.backlog import Backlog
from gpt.formats.cubin import parse_cubin
from gpt.stream import records, wire
from tests import cuda
from tests.asm import fake
from tests.asm.modules import HEAD, PLAIN, RICH, hungry, probed
from tests.stages.tools import run
from tests.tiers import examples

NEEDS = ("registers", "spills", "stack", "shared", "constant")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{cuda.tool('ptxas').parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "cache" / "gpt" / "asm"


def ptx(number, text, **keys):
    keys = {"module": f"libfoo.so#{number}", "arch": "sm_80", "kernels": [], "data": text.encode()} | keys
    return records.make("ptx", id=number, **keys)


def segment(*found):
    end = records.make("end", records=0, status=0)
    return b"".join(wire.pack(record) for record in [wire.header("test", []), *found, end])


def asm(data, *args, arch="sm_90"):
    return run("gpt-asm", "--arch", arch, *args, data=data)


# What it writes


@pytest.mark.full
def test_objects_of_the_machine_at_hand(cache):
    done = asm(segment(ptx(7, RICH)), arch="host,sm_80")
    assert (done.status, done.err) == (0, "")
    made, *kernels = [r for r in done.records if r.get("arch") == "host"]
    assert (made["kind"], made["id"], made["kernels"]) == ("object", 7, ["calls", "shares"])
    assert made["data"][:4] == b"\x7fELF" and b"host_module" in made["data"]
    needs = {r["name"]: (r["stack"], r["shared"], "registers" in r) for r in kernels}
    assert needs == {"calls": (96, 0, False), "shares": (0, 400, False)}
    assert not any(records.check(record) for record in done.records)
    kept = len(list(cache.rglob("*")))
    again = asm(segment(ptx(7, RICH)), arch="host,sm_80")
    assert again.kind("object") == done.kind("object") and len(list(cache.rglob("*"))) == kept
    only = asm(segment(ptx(7, RICH, only=["shares"])), "--kernel", "calls", arch="host")
    assert [record["kernels"] for record in only.kind("object")] == [["shares"]]
    bad = asm(
        segment(ptx(7, PLAIN.replace("ret;", "tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r1}];"))), arch="host"
    )
    assert bad.status == 3 and "gpt-asm: error: libfoo.so#7:9: not supported: 'tex.1d" in bad.err
    assert "cannot be packed" in asm(segment(), "--fatbin", arch="host").err


def test_a_module_may_want_less_than_code_for_host(monkeypatch):
    want = [asm(segment(ptx(7, RICH, kernels=["calls", "shares"], want=w)), arch="host") for w in ("text", "outline")]
    assert [[r["kind"] for r in one.records] for one in want] == [
        ["header", "ptx", "end"],
        ["header", "ptx", "outline", "end"],
    ]
    (outline,) = want[1].kind("outline")
    assert not records.check(outline) and [kernel["name"] for kernel in outline["kernels"]] == ["calls", "shares"]
    both = asm(segment(ptx(7, RICH, kernels=["calls", "shares"], want="load")), arch="host")
    assert both.kind("outline") == [outline] and [made["data"] for made in both.kind("object")] == [b""]
    single = asm(segment(ptx(7, PLAIN, kernels=["plain"], want="load")), arch="host")
    assert len(single.kind("outline")) == 1 and single.kind("object")[0]["data"][:4] == b"\x7fELF"
    monkeypatch.setenv("CC", "/nowhere/cc")
    lacks = asm(segment(ptx(8, PLAIN.replace("plain", "other"), kernels=["other"], want="load")), arch="host")
    assert (lacks.status, len(lacks.kind("outline")), lacks.kind("object")) == (0, 1, [])


def test_cubins_and_kernels_follow_their_module():
    done = asm(segment(ptx(7, RICH), {"kind": "x-mine"}, ptx(9, PLAIN)), arch="sm_90,sm_80")
    assert (done.status, done.err) == (0, "")
    found = [(r["kind"], r.get("id"), r.get("arch"), r.get("name")) for r in done.records[1:-1]]
    assert found == [
        ("ptx", 7, "sm_80", None),
        ("cubin", 7, "sm_90", None),
        ("cubin", 7, "sm_80", None),
        ("kernel", 7, "sm_90", "shares"),
        ("kernel", 7, "sm_90", "calls"),
        ("kernel", 7, "sm_80", "shares"),
        ("kernel", 7, "sm_80", "calls"),
        ("x-mine", None, None, None),
        ("ptx", 9, "sm_80", None),
        ("cubin", 9, "sm_90", None),
        ("cubin", 9, "sm_80", None),
        ("kernel", 9, "sm_90", "plain"),
        ("kernel", 9, "sm_80", "plain"),
    ]
    assert not any(records.check(record) for record in done.records)
    for cubin in done.kind("cubin"):
        names = [symbol["name"] for symbol in parse_cubin(cubin["data"]).kernels]
        assert cubin["kernels"] == names and cubin["module"] == f"libfoo.so#{cubin['id']}"
    for kernel in done.kind("kernel"):
        assert all(key in kernel for key in NEEDS) and "registers_before" not in kernel
        assert kernel["shared"] == (400 if kernel["name"] == "shares" else 0)


def test_the_cubin_is_that_of_ptxas(tmp_path):
    (tmp_path / "module.ptx").write_text(RICH)
    # The cubin contains the command line with which it was made.
    options = ["-v", "-arch=sm_90", "-O1", "--maxrregcount=40", "-lineinfo", "module.ptx", "-o", "module.cubin"]
    cuda.run("ptxas", *options, cwd=tmp_path)
    done = asm(segment(ptx(1, RICH)), "-O", "1", "--maxrregcount", "40", "--lineinfo", "--ptxas", cuda.tool("ptxas"))
    assert done.kind("cubin")[0]["data"] == (tmp_path / "module.cubin").read_bytes()


def test_a_module_says_how_many_registers_its_kernels_may_use():
    """Some of the kernels declare a block size, for which ptxas ignores --maxrregcount. If a kernel has a lower limit,
    that is kept.
    """
    heads = ("", ".reqntid 256, 1, 1", ".maxntid 128, 1, 1 .minnctapersm 2", ".maxnreg 24", ".maxnreg 200")
    body = hungry(120).removeprefix(HEAD)
    text = HEAD + "".join(
        body.replace("hungry", f"k{n}").replace(") {", f") {head} {{", 1) for n, head in enumerate(heads)
    )

    def used(*options, **keys):
        done = asm(segment(ptx(1, text, **keys)), *options)
        assert (done.status, done.err) == (0, "")
        return {record["name"]: record["registers"] for record in done.kind("kernel")}

    free = used()
    assert [free[f"k{n}"] for n in (0, 1, 2, 4)] > [100] * 4
    for options, limit, most in (((), 64, 64), (("--maxrregcount", "40"), 64, 40), (("--maxrregcount", "80"), 64, 64)):
        found = used(*options, registers=limit)
        assert {found[f"k{n}"] for n in (0, 1, 2, 4)} == {most} and found["k3"] <= 24
    assert used(registers=1 << 40)["k0"] == free["k0"]
    bad = text.replace("ret;", "ret", 1)
    assert asm(segment(ptx(1, bad, registers=64))).err == asm(segment(ptx(1, bad))).err != ""


@pytest.mark.full
def test_order_is_kept_however_many_run_at_a_time():
    texts = [hungry(5 + 90 * (n % 2)) for n in range(12)]
    data = segment(*(ptx(n, text) for n, text in enumerate(texts)))
    outputs = {asm(data, f"-j{jobs}", "--no-cache").out for jobs in (1, 2, 8)}
    assert len(outputs) == 1
    assert [r["id"] for r in run("cat", data=outputs.pop()).kind("ptx")] == list(range(12))


def test_added_resources_are_reported():
    text = hungry(20).replace("bar.sync 0;", ".shared .b32 more[8]; st.shared.u32 [more], %r1; bar.sync 0;")
    done = asm(segment(ptx(1, text, original=hungry(20).encode())), "--compare")
    (kernel,) = done.kind("kernel")
    assert kernel["shared"] - kernel["shared_before"] == 32
    assert {f"{key}_before" for key in NEEDS} <= kernel.keys()
    assert len(done.kind("cubin")) == 1
    (kernel,) = asm(segment(ptx(1, text, original=hungry(20).encode()))).kind("kernel")
    assert "shared_before" not in kernel
    (kernel,) = asm(segment(ptx(1, text)), "--compare").kind("kernel")
    assert "shared_before" not in kernel


def test_unassemblable_original_is_a_warning():
    done = asm(segment(ptx(1, PLAIN, original=b"hello")), "--compare")
    assert done.status == 0 and "warning: libfoo.so#1: cannot be assembled without probes" in done.err
    assert len(done.kind("cubin")) == len(done.kind("kernel")) == len(done.kind("diag")) == 1


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_a_fatbin_is_what_cuobjdump_reads(tmp_path, codec):
    data = segment(ptx(3, RICH, module="some/dir/libfoo.so#3"))
    done = asm(data, "--fatbin", "--compress", codec, "--save", tmp_path / "images", arch="sm_90,sm_100a,sm_80")
    assert (done.status, done.err) == (0, "")
    (image,) = done.kind("fatbin")
    assert image["archs"] == ["sm_90", "sm_100a", "sm_80"] and set(image["kernels"]) == {"calls", "shares"}
    assert not done.kind("cubin") and len(done.kind("kernel")) == 6
    file = tmp_path / "images" / "libfoo.3.fatbin"
    assert file.read_bytes() == image["data"]
    cuda.run("cuobjdump", "-xelf", "all", "-xptx", "all", file, cwd=tmp_path)
    apart = asm(data, "--save", tmp_path / "images", arch="sm_90,sm_100a,sm_80")
    for number, cubin in enumerate(apart.kind("cubin"), 1):
        assert (tmp_path / f"libfoo.3.{number}.{cubin['arch']}.cubin").read_bytes() == cubin["data"]
        assert (tmp_path / "images" / f"libfoo.3.{cubin['arch']}.cubin").read_bytes() == cubin["data"]
    assert (tmp_path / "libfoo.3.1.sm_80.ptx").read_text().split() == RICH.split()


def test_fatbin_is_complete_or_missing():
    done = asm(segment(ptx(1, PLAIN.replace("sm_80", "sm_90"))), "--fatbin", arch="sm_90,sm_80")
    assert done.status == 1 and not done.kind("fatbin") and len(done.kind("diag")) == 1
    assert "is for sm_90 and cannot be assembled for sm_80" in done.err


def test_names_of_files_stay_in_their_folder(tmp_path):
    names = ["../../up#1", "/etc/passwd#2", "..#3", "a\0b#4", "x" * 300 + "#5", "\udcff#6", "#7", ""]
    data = segment(*(ptx(n, PLAIN, module=name) for n, name in enumerate(names)))
    done = asm(data, "--save", tmp_path / "images")
    assert (done.status, done.err) == (0, "")
    assert len(list((tmp_path / "images").iterdir())) == len(names)


def test_files_with_the_same_name_are_reported(tmp_path):
    data = segment(ptx(1, PLAIN), ptx(2, PLAIN)) + segment(ptx(1, RICH))
    done = asm(data, "--save", tmp_path / "images")
    path = tmp_path / "images" / "libfoo.1.sm_90.cubin"
    assert path.read_bytes() == done.kind("cubin")[2]["data"]
    assert (done.status, done.err) == (
        0, f"gpt-asm: warning: {path}: is the second of its name and replaced the first\n"
    )  # fmt: skip


def test_unsaved_file_is_named(tmp_path):
    path = tmp_path / "images" / "libfoo.1.sm_90.cubin"
    path.mkdir(parents=True)
    done = asm(segment(ptx(1, PLAIN)), "--save", tmp_path / "images")
    assert (done.status, done.err) == (1, f"gpt-asm: error: {path}: is not a regular file\n")


def test_on_a_terminal_there_is_a_table(tmp_path):
    (tmp_path / "in.mp").write_bytes(segment(ptx(1, RICH), ptx(2, hungry(9), original=PLAIN.encode())))
    master, slave = pty.openpty()
    command = ["gpt-asm", "--arch", "sm_90", "--compare", tmp_path / "in.mp"]
    subprocess.run(command, stdout=slave, env={**os.environ, "TERM": "dumb"}, check=True, timeout=60)
    os.close(slave)
    lines = os.read(master, 1 << 16).decode().splitlines()
    os.close(master)
    assert lines[0].split() == ["kernel", "arch", "regs", "spills", "stack", "shared", "const"]
    assert lines[1].split()[:2] == ["shares", "sm_90"] and lines[1].split()[5] == "400"
    assert len(lines) == 4


def test_a_module_for_one_gpu_alone_is_assembled_for_it():
    """Triton writes such modules: an sm_90 GPU runs sm_90a code."""
    done = asm(segment(ptx(1, PLAIN.replace("sm_80", "sm_90a")), ptx(2, PLAIN)), "--fatbin", arch="sm_90,sm_90a")
    assert (done.status, done.err) == (0, "")
    assert [record["archs"] for record in done.kind("fatbin")] == [["sm_90a"], ["sm_90", "sm_90a"]]
    done = asm(segment(*[ptx(1, PLAIN.replace("sm_80", "sm_90a"))] * 2), arch="sm_100,sm_80")
    assert done.status == 1 and len(done.kind("diag")) == 4
    assert done.err.splitlines() == [
        f"gpt-asm: error: libfoo.so#1: is for sm_90a and cannot be assembled for {arch}" for arch in ("sm_100", "sm_80")
    ]


# Faults


def test_a_fault_costs_its_module_and_no_other():
    wrong = HEAD + ".visible .entry k() { bogus; }\n"
    done = asm(segment(ptx(1, PLAIN), ptx(2, wrong), ptx(3, RICH)), arch="sm_90,sm_80")
    assert done.status == 3
    assert done.err == "gpt-asm: error: libfoo.so#2:4: Not a name of any known instruction: 'bogus'\n"
    (diag,) = done.kind("diag")
    assert diag["ref"] == "libfoo.so#2" and diag["where"] == "libfoo.so#2:4"
    assert [r["id"] for r in done.kind("cubin")] == [1, 1, 3, 3]
    assert done.records[-1]["kind"] == "end"


def test_fault_in_non_utf8_file_name_keeps_other_modules():
    wrong = ptx(1, HEAD + ".visible .entry k() { bogus; }\n", module="\udcff.ptx#0")
    done = asm(segment(wrong, ptx(2, PLAIN)))
    assert done.status == 3
    assert done.err == "gpt-asm: error: \\udcff.ptx#0:4: Not a name of any known instruction: 'bogus'\n"
    assert [r["id"] for r in done.kind("cubin")] == [2] and done.records[-1]["kind"] == "end"


def test_a_probe_is_named_as_the_place():
    done = asm(segment(ptx(1, probed(PLAIN).replace("[%rd2+8], %probe", "[%rd2+8], %rd1x"))))
    assert done.status == 3 and "gpt-asm: error: probes/count.toml:5: " in done.err


def test_incomplete_records_are_reported_and_passed():
    bad = [{"kind": "ptx"}, {"kind": "ptx", "id": "x", "module": 3}, {**ptx(1, PLAIN), "data": "text"}]
    done = asm(segment(*bad, ptx(2, PLAIN)))
    assert done.status == 3 and len(done.kind("diag")) == 3 and len(done.kind("cubin")) == 1
    assert done.kind("ptx")[:3] == bad


@pytest.mark.parametrize(
    ("does", "status"), [("kill -ABRT $$", 1), ("exec sleep 60", 1), ("exit 0", 1), ("echo $$", 1)]
)
def test_misbehaving_ptxas_gives_one_message_per_module(tmp_path, does, status):
    path = fake.ptxas(tmp_path / "bad", does)
    done = asm(segment(ptx(1, PLAIN), ptx(2, PLAIN)), "--ptxas", path, "--timeout", "0.5")
    assert done.status == status
    assert [line.split(": ")[2] for line in done.err.splitlines()] == ["libfoo.so#1", "libfoo.so#2"]
    assert len(done.kind("ptx")) == 2 and len(done.kind("diag")) == 2


def test_needs_missing_from_ptxas_output_are_left_out(tmp_path):
    real = f'{cuda.tool("ptxas")} "$@" >/dev/null 2>&1'
    garbage = "head -c 200000 /dev/urandom; echo 'ptxas info    : Used x registers'"
    done = asm(segment(ptx(1, PLAIN)), "--ptxas", fake.ptxas(tmp_path / "odd", f"{real}; {garbage}"))
    (kernel,) = done.kind("kernel")
    assert done.status == 0 and set(kernel) == {"kind", "id", "name", "arch", "registers", "stack", "constant"}


def test_a_newer_ptx_wants_a_newer_ptxas(tmp_path):
    path = fake.ptxas(tmp_path / "old", "exit 0", versions="7.0", release="11.0.1")
    done = asm(segment(ptx(1, PLAIN)), "--ptxas", path)
    assert done.status == 4 and f"libfoo.so#1: ptxas 11.0.1 ({path}) doesn't know PTX 8.0" in done.err


@pytest.mark.parametrize(
    ("args", "status", "fact"),
    [
        ([], 2, "--arch SM,... is required"),
        (["--arch", "SM_90"], 2, "not a compute capability: 'SM_90' (did you mean sm_90?)"),
        (["--arch", "guest"], 2, "--arch: not a compute capability: 'guest'"),
        (["--arch", "sm_90", "--ptxas", "/absent/ptxas"], 4, "/absent/ptxas: --ptxas: no such executable"),
        (["--arch", "sm_90", "-O", "9"], 2, "-O"),
        (["--arch", "sm_90", "--timeout", "0"], 2, "--timeout"),
    ],
)
def test_command_lines_that_make_no_sense(args, status, fact):
    done = run("gpt-asm", *args, data=segment())
    assert done.status == status and fact in done.err and len(done.err.splitlines()) == 1


@pytest.mark.full
def test_an_image_larger_than_a_record_is_reported(tmp_path):
    copy = f"cat {tmp_path}/real.cubin /dev/zero | head -c {65 << 20} > $out"
    (tmp_path / "real.cubin").write_bytes(asm(segment(ptx(1, PLAIN))).kind("cubin")[0]["data"])
    done = asm(segment(ptx(1, PLAIN)), "--ptxas", fake.ptxas(tmp_path / "large", copy))
    assert done.status == 1 and "error: libfoo.so#1: cubin record of" in done.err and done.records[-1]["kind"] == "end"


# The cache


def test_cached_results_are_not_assembled_again(tmp_path, cache):
    data = segment(ptx(1, RICH), ptx(2, RICH, module="other"))
    first = asm(data)
    assert len(list(cache.iterdir())) == 1
    real = cuda.run("ptxas", "--version")
    (tmp_path / "version").write_text(real)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ptxas").write_text(f"#!/bin/sh\n[ $1 = --version ] && exec cat {tmp_path}/version\nexit 1\n")
    (broken / "ptxas").chmod(0o755)
    kept = asm(data, "--ptxas", broken / "ptxas")
    assert kept.status == 0 and kept.records[1:] == first.records[1:]
    assert asm(data, "--ptxas", broken / "ptxas", "--no-cache").status == 1
    assert asm(data, "--ptxas", broken / "ptxas", "-O1").status == 1
    assert asm(data, "--ptxas", broken / "ptxas", arch="sm_80").status == 1


def test_unwritable_cache_is_not_an_error(tmp_path, cache):
    cache.parent.mkdir(parents=True)
    cache.touch()
    done = asm(segment(ptx(1, PLAIN)))
    assert (done.status, done.err) == (0, "") and len(done.kind("cubin")) == 1


def test_nothing_that_went_wrong_is_kept(tmp_path, cache):
    assert asm(segment(ptx(1, "hello"))).status == 3
    assert not cache.exists() or not list(cache.iterdir())


def test_warnings_are_kept_and_name_the_module_that_has_them(tmp_path):
    real = f'{cuda.tool("ptxas")} "$@"'
    path = fake.ptxas(
        tmp_path / "loud", f"{real}; echo 'ptxas warning : odd'; echo 'ptxas module.ptx, line 5; warning : x'"
    )
    for name in ("one", "two"):
        done = asm(segment(ptx(1, PLAIN, module=name)), "--ptxas", path)
        assert done.err == f"gpt-asm: warning: {name}: for sm_90: odd\ngpt-asm: warning: {name}:5: x\n"
        assert done.status == 0


# A signal


def wait_for(pids, count):
    """Return the path once the file has this many lines."""
    end = time.monotonic() + 30
    while (not pids.exists() or len(pids.read_text().split()) < count) and time.monotonic() < end:
        time.sleep(0.05)
    return pids


def status_of(process):
    try:
        return process.wait(30)
    finally:
        process.kill()  # leaving Popen's block waits for the process


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_all_processes(tmp_path, number):
    path = fake.ptxas(tmp_path / "slow", f"echo $$ >> {tmp_path}/pids; sleep 300")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ["gpt-asm", "--arch", "sm_90", "-j2", "--ptxas", path]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdin.write(segment(*(ptx(n, PLAIN) for n in range(20))))
        process.stdin.flush()
        pids = wait_for(tmp_path / "pids", 2)
        process.send_signal(number)
        assert status_of(process) == -number
        assert process.stderr.read() == b""
    assert list(temporary.iterdir()) == []
    for group in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            for _ in range(100):
                os.killpg(int(group), 0)
                time.sleep(0.05)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("waits", ["for ptxas", "for its input"])
def test_signal_in_another_thread_ends_the_tool(tmp_path, waits):
    """Python's own handler runs in the main thread, which a signal to another thread doesn't wake up."""
    path = fake.ptxas(tmp_path / "slow", f"echo $$ >> {tmp_path}/pids; sleep 300")
    command = ["gpt-asm", "--arch", "sm_90", "-j1", "--ptxas", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        process.stdin.write(segment(*(ptx(n, PLAIN) for n in range(20 if waits == "for ptxas" else 1))))
        process.stdin.flush()
        wait_for(tmp_path / "pids", 1)
        (other,) = {int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()} - {process.pid}
        assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGTERM) == 0
        assert status_of(process) == -signal.SIGTERM


# The order of results


@settings(max_examples=examples(50), suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.floats(0, 0.002), max_size=3), max_size=30), st.integers(1, 4))
def test_results_come_in_order_and_what_waits_is_bounded(entries, threads):
    def sleep(seconds):
        time.sleep(seconds)
        return seconds

    out = []
    with Backlog(threads, lambda: None) as backlog:
        for number, delays in enumerate(entries):
            jobs = [lambda d=delay: sleep(d) for delay in delays]
            out += backlog.add(jobs, lambda futures, n=number: [(n, [f.result() for f in futures])], 10)
            waiting = sum(len(delays) for delays in entries[len(out) : number + 1])
            assert waiting <= 4 * threads
        out += backlog.drain()
    assert out == list(enumerate(entries))


def test_a_stream_is_read(tmp_path):
    (tmp_path / "in.mp").write_bytes(segment(ptx(1, PLAIN)))
    done = run("gpt-asm", "--arch", "sm_90", tmp_path / "in.mp", tmp_path / "in.mp")
    assert len(done.kind("cubin")) == 2
    assert done.records[0]["via"] == ["gpt-asm"]


def test_truncated_stream_assembles_complete_modules(tmp_path):
    last = wire.pack(ptx(8, PLAIN))
    data = segment(*(ptx(number, PLAIN) for number in range(9)))
    (tmp_path / "in.mp").write_bytes(data[: data.index(last) + 40])
    done = run("gpt-asm", "--arch", "sm_90", tmp_path / "in.mp")
    assert (done.status, len(done.kind("cubin"))) == (3, 8)
