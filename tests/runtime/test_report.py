"""The last line that gpt-hook prints."""

import ctypes
import functools
import os
import re
import resource
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpt.stream import records
from tests.runtime import hooked
from tests.runtime.clients import FORK, LOOP, THREADS
from tests.runtime.hooked import Trace
from tests.tiers import first
from tests.trace import forge


def said(tmp_path, *args, options=(), **more) -> list[str]:
    line = hooked.command("run", "-fo", tmp_path / "t.mp", "--device", "sim", *options, "--", *args, quiet=False)
    done = subprocess.run(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False, **more)
    return done.stderr.splitlines()


def ends(how: str) -> str:
    return LOOP.replace("launch(f); }", f"launch(f); {how} }}")


def counted(paths) -> list[int]:
    """Return the numbers of calls, including calls that are only counted, launches, traces, and their bytes."""
    traces = [Trace(path) for path in paths]
    counts = [row["count"] for trace in traces for record in trace.of("counts") for row in hooked.rows(record)]
    calls = sum(len(trace.calls) for trace in traces) + sum(counts)
    launches = sum(sum(trace.launches.values()) for trace in traces)
    return [calls, launches, len(traces), sum(path.stat().st_size for path in paths)]


def numbers(line: str, path) -> list[int | float]:
    found = re.fullmatch(
        rf"gpt-hook: {path}: (\d+) calls?, (\d+) launch(?:es)?, (\d+) process(?:es)?, ([\d.]+) ([KM]iB)", line
    )
    assert found, line
    return [*map(int, found.groups()[:3]), float(found[4]) * {"K": 1 << 10, "M": 1 << 20}[found[5][0]]]


@pytest.fixture
def loop(tmp_path):
    return hooked.compile_c(tmp_path / "loop", LOOP)


@pytest.mark.parametrize(
    ("source", "flags", "args"),
    [
        (LOOP, (), ("30000",)),
        (THREADS, ("-DROUNDS=30", "-DAT_ONCE=4"), ()),
        (FORK, (), ("x",)),  # children that others must report
        (ends("_exit(0);"), (), ("7",)),
        (ends("quick_exit(3);"), (), ("7",)),
    ],
)
@pytest.mark.parametrize("name", first("t.mp", "t-%p.mp"))
def test_report_counts_match_the_traces(tmp_path, source, flags, args, name):
    program = hooked.compile_c(tmp_path / "client", source, *flags)
    (line,) = said(tmp_path, program, *args, options=("-o", tmp_path / name))
    paths = sorted(tmp_path.glob("t*.mp*"))
    (root,) = [path for path in paths if f": {path}: " in line]
    *exact, size = numbers(line, root)
    *expected, expected_size = counted(paths)
    assert exact == expected and size == pytest.approx(expected_size, rel=0.06)


def test_processes_of_a_shell_that_has_no_trace_itself(tmp_path, loop):
    (line,) = said(tmp_path, "sh", "-c", f"{loop} 3; {loop} 4; true")
    assert numbers(line, tmp_path / "t.mp")[1:3] == [7, 2]


def test_program_closes_standard_error(tmp_path):
    """coreutils close their standard error at the end. A file can be reopened, but its replacement can't, and neither
    can a pipe.
    """
    command = [*hooked.command("run", "-fo", tmp_path / "t.mp", quiet=False), "--"]
    with open(tmp_path / "e", "w") as error:
        subprocess.run([*command, "ls", "/nosuch"], stderr=error, stdout=subprocess.DEVNULL)
    first, last = (tmp_path / "e").read_text().splitlines()
    assert first.startswith("ls: ") and last.startswith(f"gpt-hook: warning: {tmp_path}/t.mp: not written: ")
    with open(tmp_path / "e", "w") as error:
        moved = f"mv {tmp_path}/e {tmp_path}/old; : > {tmp_path}/e; exec ls"
        subprocess.run([*command, "sh", "-c", moved], stderr=error, stdout=subprocess.DEVNULL)
    assert (tmp_path / "e").read_text() == (tmp_path / "old").read_text() == ""
    done = subprocess.run([*command, "ls", "/nosuch"], capture_output=True, text=True)
    assert len(done.stderr.splitlines()) == 1


def test_nothing_was_written(tmp_path):
    (line,) = said(tmp_path, "sh", "-c", "true")
    fact = "not written: no process that gpt-hook watched used the CUDA driver"
    assert line == f"gpt-hook: warning: {tmp_path}/t.mp: {fact}"


def test_after_exec_the_last_program_says_it(tmp_path, loop):
    (line,) = said(tmp_path, "sh", "-c", f"{loop} 3; exec {loop} 4")
    assert numbers(line, tmp_path / "t.mp")[1:3] == [7, 2]


def test_a_killed_program_prints_no_report(tmp_path, loop):
    assert said(tmp_path, "sh", "-c", f"{loop} 3; kill -9 $$") == []


def test_the_programs_own_files_stay_its_own(tmp_path, loop):
    assert said(tmp_path, "sh", "-c", f"{loop} 3; exec 2>&-; true") == []
    assert said(tmp_path, "sh", "-c", f"exec 2>{tmp_path}/own; {loop} 3; true") == []
    assert (tmp_path / "own").read_text() == ""
    closes = ends(f'close(2); assert(creat("{tmp_path}/own", 0600) == 2);')
    assert said(tmp_path, hooked.compile_c(tmp_path / "closes", closes, "-includefcntl.h"), "3") == []
    assert (tmp_path / "own").read_text() == ""
    assert said(tmp_path, loop, "3", preexec_fn=lambda: os.close(2)) == []


def test_quiet_streams_and_outer_hooks(tmp_path, loop):
    assert said(tmp_path, loop, "3", options=("-q",)) == []
    assert said(tmp_path, loop, "3", options=("-o", "|cat >/dev/null")) == []
    inner = hooked.command("run", "-o", tmp_path / "inner.mp", "--device", "sim", "--", loop, "3")
    lacks = "won't have this command: another gpt-hook run records it"
    assert said(tmp_path, *inner) == [f"gpt-hook: warning: {tmp_path}/t.mp {lacks}"]


def test_children_that_a_forged_trace_names(tmp_path, loop):
    """Only files next to the trace are read, and each only once. Otherwise, files that name each other twice would
    double the count at each step.
    """
    for folder in (tmp_path, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        child = forge.chunk(forge.pack(forge.trace(forge.api(1, "x"), forge.calls([(1, 1, 1, 0)]))))
        (folder / "child").write_bytes(child)
    names = ["child", "link", "gone", "t.mp", "t.mp", "other/child", "../other/child", str(tmp_path / "other/child")]
    forged = [records.make("child", pid=2, how="fork", path=name) for name in names]
    (tmp_path / "forged").write_bytes(forge.chunk(forge.pack(forge.trace(*forged))))
    (tmp_path / "link").symlink_to("other/child")
    (line,) = said(tmp_path, "sh", "-c", f"{loop} 3; cat {tmp_path}/forged >{tmp_path}/t.mp; true")
    assert numbers(line, tmp_path / "t.mp")[:3] == [1, 0, 2]


def test_program_is_unaffected_if_its_report_cannot_be_written(tmp_path, loop):
    """A report can't be written if a pipe has no reader or a file may not grow. The program isn't affected."""
    line = hooked.command("run", "-fo", tmp_path / "t.mp", "--device", "sim", "--", loop, "9", quiet=False)
    ours, theirs = os.pipe()
    os.close(ours)
    assert subprocess.run(line, stderr=theirs, check=False).returncode == 0
    os.close(theirs)
    limit = 1 << 20
    (tmp_path / "err").write_bytes(bytes(limit))
    with open(tmp_path / "err", "ab") as full:
        limited = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        assert subprocess.run(line, stderr=full, check=False, preexec_fn=limited).returncode == 0


def test_hole_is_skipped(tmp_path, loop):
    (line,) = said(tmp_path, "sh", "-c", f"{loop} 3; truncate -s 1T {tmp_path}/t.mp; true")
    assert line.endswith(" 3 launches, 1 process, 1024 GiB"), line


def test_report_copes_with_a_damaged_or_missing_trace(tmp_path, loop):
    gone = f"{loop} 3; rm {tmp_path}/t.mp; {{ echo; head -c 99999 /dev/urandom; }} >{tmp_path}/t.mp; true"
    (line,) = said(tmp_path, "sh", "-c", gone)
    assert numbers(line, tmp_path / "t.mp")[:2] == [0, 0]
    loops = f"{loop} 3; cat {tmp_path}/t.mp >{tmp_path}/u; truncate -s 9000 {tmp_path}/t.mp; true"
    (line,) = said(tmp_path, "sh", "-c", loops)
    assert numbers(line, tmp_path / "t.mp")[2] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root directory and its user")
@pytest.mark.parametrize(
    ("does", "fact"),
    [
        ('assert(!chroot("/proc") && !chdir("/"));', "No such file or directory"),
        ("assert(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));", "Permission denied"),
    ],
)
def test_a_trace_out_of_reach_is_not_called_unwritten(tmp_path, does, fact):
    tmp_path.chmod(0o700)
    program = hooked.compile_c(tmp_path / "leaves", ends(does))
    (line,) = said(tmp_path, program, "3")
    expected = f"can't be read at the end ({fact}), so its calls aren't counted"
    assert line == f"gpt-hook: warning: {tmp_path}/t.mp: {expected}"
    assert sum(Trace(tmp_path / "t.mp").launches.values()) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_uncreatable_trace_does_not_blame_another_program(tmp_path):
    """The program changes its user before it uses the driver."""
    tmp_path.chmod(0o755)
    leaves = r"""
    int main(void) {
        assert(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
        begin();
    }
    """
    program = hooked.compile_c(tmp_path / "leaves", leaves)
    first, *_, last = said(tmp_path, program)
    assert first == f"gpt-hook: error: {tmp_path}/t.mp: Permission denied; nothing more is recorded"
    assert last.startswith(f"gpt-hook: warning: {tmp_path}/t.mp: can't be read at the end (")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
@pytest.mark.parametrize(
    ("becomes", "said_at_the_end"),
    [
        # real and effective user: the second program runs with the hook, but can't open the first one's trace
        (
            "assert(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));",
            "gpt-hook: error: {path}: this process may not open it: it's another user's, or the process has changed "
            "its user; nothing more is recorded",
        ),
        # the effective user only: the dynamic linker ignores LD_PRELOAD
        (
            "assert(!seteuid(65534));",
            "gpt-hook: warning: nothing was recorded from {program}, which leaves started: a program that is started "
            "with the rights of another user ignores LD_PRELOAD; put 'gpt-hook run' after it",
        ),
    ],
)
def test_a_program_that_changes_its_user_and_executes_another(becomes, said_at_the_end):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # where others may execute programs
        folder = Path(name)
        folder.chmod(0o755)
        second = hooked.compile_c(folder / "second", "int main(void) { begin_trace(); }")
        source = f'int main(void) {{ begin_trace(); {becomes} execl("{second}", "second", NULL); }}'
        lines = said(folder, hooked.compile_c(folder / "leaves", source))
        assert said_at_the_end.format(path=folder / "t.mp", program=second) in lines


def install_filter(libc):
    """Install a filter that permits everything."""
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000), 8)
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    assert not libc.prctl(22, 2, program, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def enter_container():
    """Install a filter, and give up CAP_SYS_ADMIN, as a container's runtime does."""
    libc = ctypes.CDLL(None)
    assert not libc.prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN
    install_filter(libc)


def enter_service():
    """Install a filter and set no_new_privs, as systemd does for services."""
    libc = ctypes.CDLL(None)
    assert not libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    install_filter(libc)


@pytest.mark.skipif(os.geteuid() != 0, reason="others need no_new_privs to install a filter")
def test_in_a_container(tmp_path, loop):
    """A filter that was there before the program is not the program's own."""
    (line,) = said(tmp_path, loop, "7", preexec_fn=enter_container)
    assert numbers(line, tmp_path / "t.mp")[1:3] == [7, 1]
    (line,) = said(tmp_path, "env", "-i", "true", preexec_fn=enter_container)
    assert line == (
        f"gpt-hook: warning: {tmp_path}/t.mp: not written: nothing was recorded from true, which env started without "
        "LD_PRELOAD; put 'gpt-hook run' right before that program"
    )


# Adds a filter that kills a process for opening a file, in one way or another.
SANDBOXED = LOOP.replace(
    "int main(",
    r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
static void *enter(void *leave) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    assert(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){4, code}, 0, 0));
    if (leave)
        exit(0);
    return NULL;
}
static void in_thread(void *leave) {
    pthread_t thread;
    assert(!pthread_create(&thread, NULL, enter, leave) && !pthread_join(thread, NULL));
}
int main(""",
).replace("launch(f); }", "launch(f); HOW }")


@pytest.mark.skipif("Seccomp_filters:" not in Path("/proc/self/status").read_text(), reason="needs Linux 5.9")
@pytest.mark.parametrize("begin", [enter_service, None])
@pytest.mark.parametrize(
    ("how", "reports"),
    [
        ("", True),
        ("if (!fork()) { enter(NULL); _exit(0); }", True),
        ("in_thread(NULL);", True),  # the main thread has no other filter
        ("enter(NULL);", False),
        ("in_thread(v);", False),
        ("close_range(3, ~0u, 0); enter(NULL);", False),
    ],
)
def test_a_service_reports_unless_it_has_added_a_filter(tmp_path, begin, how, reports):
    """A program that starts under a filter and with no_new_privs may add another filter at any time."""
    program = hooked.compile_c(tmp_path / "client", SANDBOXED.replace("HOW", how), "-lpthread")
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--", program, "7", quiet=False)
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=begin)
    assert done.returncode == 0  # it wasn't killed for opening a file
    reported = [line for line in done.stderr.splitlines() if "error" not in line]
    assert len(reported) == reports
    if reports:
        assert numbers(reported[0], tmp_path / "t.mp")[1:3] == [7, 1]
