"""Faults of requests: the request itself is faulty, or the answering process is stopped, killed or missing."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.runtime import hooked
from tests.runtime.brokered import ASKING, Run
from tests.tiers import full


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    hooked.wait_until(lambda: not made.alive())


@pytest.fixture(scope="session")
def asking(tmp_path_factory):
    """Return a program that makes requests with a timeout of 1 s."""
    source = hooked.ROOT / "runtime"
    flags = [
        "-w",
        "-D_GNU_SOURCE",
        *hooked.INCLUDE,
        "-include",
        source / "portable.h",
        "-DGPT_SILENCE=1",
        source / "sim" / "stages.c",
    ]
    return hooked.compile_c(tmp_path_factory.mktemp("asking") / "asking", ASKING, *flags, prelude=False)


def ask(process: subprocess.Popen, name: str) -> str:
    process.stdin.write(f"{name}\n"), process.stdin.flush()
    return process.stdout.readline()


@pytest.mark.full
def test_killed_worker_is_replaced(run):
    process = run.start('begin_all(), run("a", 0), run("b", 1)', CC=str(run.folder / "slow"))
    compiler, (broker,) = run.compiler(), run.alive("gpt-broker")
    run.kill("gpt-asm\0--arch")  # its remaining processes become the broker's
    hooked.wait_until(lambda: f"PPid:\t{broker}\n" in Path(f"/proc/{compiler}/status").read_text())
    (run.folder / "go").touch()
    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


def kill_stages(run, process, word, times):
    """Kill the next processes with a word in their command line, as soon as each exists."""
    killed = set()
    while process.poll() is None and len(killed) < times:
        for pid in set(run.alive(word)) - killed:
            if b"sh\0-c" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
    assert len(killed) == times


@pytest.mark.full
@pytest.mark.parametrize("word", ["gpt-extract\0--ptx", "gpt-asm\0--arch"])
def test_any_stage_may_be_killed_once(run, word):
    """The last stage takes the end of its input for the end of the request if a stage before it is killed."""
    process = run.start('begin_all(), run("a", 0)')
    kill_stages(run, process, word, 1)
    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


@pytest.mark.full
@pytest.mark.parametrize("word", ["gpt-extract\0--ptx", "gpt-asm\0--arch"])
def test_code_whose_stages_were_killed_twice_can_be_loaded_later(run, word):
    script = """
    begin_all()
    print(cu.cuModuleLoadData(byref(c_void_p()), open(sys.argv[1], "rb").read()))
    run("a", 0)
    """
    process = run.start(script)
    kill_stages(run, process, word, 2)
    assert process.communicate(timeout=120) == (
        "304\n",
        "libcuda.so.1: error: PTX: gpt-extract or gpt-asm was ended by signal 9\n",
    )
    assert process.returncode == 0


@pytest.mark.full
def test_any_stage_of_the_weaving_pipeline_may_be_killed_once(run):
    process = run.start('begin_all(), run("a", 0)', options=("-o", str(run.folder / "t.mp"), "-p", "gmem_bytes"))
    hooked.wait_until(lambda: run.alive("gpt-broker"))
    kill_stages(run, process, "gpt-ptx-probe\0-p", 1)
    assert process.communicate(timeout=120) == ("", "")
    trace = hooked.Trace(run.folder / "t.mp")
    assert (trace.kinds["probed"], trace.kinds["unprobed"]) == (1, 0)


def test_a_helper_that_cannot_be_forked_is_not_taken_for_one(tmp_path):
    source = """
    #include <errno.h>
    #include <unistd.h>
    static pid_t no_fork(void) { errno = EAGAIN; return -1; }
    #define fork no_fork
    #include "common/daemonize.c"
    static void work(pid_t root, int root_file) { _exit(root == root_file); }
    int main(void) { return gpt_start_apart(work); }
    """
    flags = ["-w", "-D_GNU_SOURCE", *hooked.INCLUDE, "-include", hooked.ROOT / "runtime" / "portable.h"]
    program = hooked.compile_c(tmp_path / "program", source, *flags, prelude=False)
    assert subprocess.run([program], check=False).returncode == 0


@pytest.mark.full
def test_without_its_supervisor_it_helps_itself(run):
    """The supervisor may be killed before a request or during it."""
    script = """
    begin_all()
    run("a", 0), run("b", 1)
    print("made")
    """
    process = run.start(script, CC=str(run.folder / "slow"))
    run.kill("gpt-broker")
    (run.folder / "go").touch()
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "made\n")
    assert re.fullmatch(r"libcuda.so.1: warning: .* is gone: .*\n", err)  # said once


@pytest.mark.full
def test_stopped_supervisor_is_abandoned(run, asking):
    """After a supervisor was stopped, it gets no more requests. A slow one still does."""
    process = run.start("", program=asking)
    ask(process, "a")
    (broker,) = run.alive("gpt-broker")
    os.kill(broker, signal.SIGSTOP)
    for count, name in enumerate("bc"):
        begun = time.monotonic()
        note = ask(process, name)
        assert ("does not answer" in note) == (not count)
        assert count or time.monotonic() - begun > 1
    os.kill(broker, signal.SIGCONT)
    process.stdin.close()
    assert process.wait() == 0
    process = run.start("", program=asking, CC=str(run.folder / "slow"))
    process.stdin.write("d\n"), process.stdin.flush()
    run.compiler()
    time.sleep(2.5)  # patience is 1 s
    (run.folder / "go").touch()
    assert process.stdout.readline() == "\n"
    process.stdin.close()
    assert process.wait() == 0


@pytest.mark.full
def test_killed_program_leaves_no_files(run):
    """The compiler, which would never end, is killed, too."""
    process = run.start('begin_all(), run("a", 0)', CC=str(run.folder / "slow"))
    run.compiler()
    assert len(run.alive()) > 5
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.full
@pytest.mark.parametrize("hook", ["", None], ids=["asked", "alone"])
def test_short_of_files_it_fails_until_there_are_some(run, hook):
    script = """
    import resource
    begin_all()
    module = load(sys.argv[1])
    kernels = [function(module, name) for name in "ab"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = [os.open("/dev/null", 0)]
    while held[-1] < 63:
        held.append(os.open("/dev/null", 0))
    print([launch(kernel, 1, 1, memory) for kernel in kernels])
    os.closerange(3, 64)
    print([launch(kernel, 1, 1, memory) for kernel in kernels])
    """
    status, out, err = run(script, hook=hook)
    assert (status, out) == (0, "[304, 304]\n[0, 0]\n")
    assert re.fullmatch("(.*kernel '[ab]': cannot run gpt-extract and gpt-asm: Too many open files\n){2}", err)


@pytest.mark.full
def test_where_files_may_not_grow_no_signal_comes(run):
    """The answer comes from the code cache, and is larger than the code."""
    assert run('begin_all(), run("a", 0)')[0] == 0
    outline, kept = sorted((run.folder / "cache/gpt/sim").iterdir(), key=lambda path: path.stat().st_size)
    script = """
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    begin_all()
    module = load(sys.argv[1])
    most = int(sys.argv[2])
    for size, status in ((100, 304), (most - 1, 0)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
        assert launch(function(module, "a"), 1, 1, memory) == status
    """
    size = kept.stat().st_size
    kept.unlink()
    status, _, err = run(script, size)
    assert status == 0, err
    assert list((run.folder / "cache/gpt/sim").iterdir()) == [outline]


@pytest.mark.full
def test_daemon_overwrites_its_environment(run):
    """The supervisor can't see the daemon's environment, and has ended."""
    script = """
    if os.fork():
        os._exit(0)
    os.setsid()
    for name, value in os.environ.items():
        os.putenv(name, value)
    start, end = map(int, open("/proc/self/stat").read().rsplit(")", 1)[1].split()[47:49])
    memset(start, 0, end - start)
    print("begun", flush=True)
    sys.stdin.read()
    begin_all(), run("a", 0), run("b", 1)
    print("made")
    """
    process = run.start(script)
    assert process.stdout.readline() == "begun\n"
    hooked.wait_until(lambda: not run.alive("gpt-broker"))
    out, err = process.communicate(timeout=120)
    assert out == "made\n" and err.count("is gone") == err.count("\n") == 1


def test_too_large_image_is_refused(run):
    run.image = run.ptx
    script = """
    begin_all()
    text = open(sys.argv[1], "rb").read().rstrip(bytes(1)) + (b"//" + 61 * b"." + b"\\n") * (1 << 20) + bytes(1)
    print(cu.cuModuleLoadData(byref(c_void_p()), text))
    """
    status, out, err = run(script)
    assert (status, out) == (0, "218\n") and "is too large: at most 64 MiB" in err


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("away", ["os.setuid(65534)", "assert not CDLL(None).unshare(0x40000000)  # CLONE_NEWNET"])
def test_out_of_its_reach_a_program_helps_itself(run, away):
    """A program that can't reach the supervisor any more runs the stages itself. If it can't access the stages' tools
    either, the launch fails.
    """
    script = """
    begin_all()
    module = load(sys.argv[1])
    """
    assert run(script)[0] == 0  # from here on, it only asks for code
    process = run.start(
        dedent(script) + f"{away}\nprint(launch(function(module, 'a'), 1, 1, memory), flush=True)\nsys.stdin.read()"
    )
    assert process.stdout.readline() in ("0\n", "221\n" if "setuid" in away else "0\n")
    # The supervisor wasn't asked: it would keep gpt-asm running for longer.
    hooked.wait_until(lambda: not run.alive("gpt-asm"), 30)
    _, err = process.communicate()
    assert process.returncode == 0 and "supervisor of gpt-hook" not in err


@pytest.mark.parametrize("hook", ["", full(None)], ids=["asked", "alone"])
@pytest.mark.parametrize(
    ("fault", "fact"),
    [
        ("echo 'cc: vfork: Resource temporarily unavailable' >&2; exit 1", "Resource temporarily unavailable"),
        ("echo 'cc: fatal error: Killed signal terminated program cc1' >&2; exit 1", "was killed"),
        full("kill -9 $$", "was killed"),
        full("echo 'ld: final link failed: No space left on device' >&2; exit 1", "No space left on device"),
    ],
)
def test_a_compiler_that_lacks_something_may_be_run_again(run, hook, fault, fact):
    cc, enough = run.folder / "cc", run.folder / "enough"
    cc.write_text(f'#!/bin/sh\n[ "$1" = --version ] || [ -e {enough} ] || {{ {fault}; }}\nexec cc "$@"\n')
    cc.chmod(0o755)
    script = """
    begin_all()
    kernel = function(load(sys.argv[1]), "a")
    print(launch(kernel, 1, 1, memory))
    open(sys.argv[2], "w")
    print(launch(kernel, 1, 1, memory))
    """
    expected = f"libcuda.so.1: error: kernel 'a': {cc}: {fact}\n"
    assert run(script, enough, hook=hook, CC=str(cc)) == (0, "304\n0\n", expected)
