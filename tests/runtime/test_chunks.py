"""The trace file: how much space a process and a thread take, its permissions, and what the program can do to it."""

import os
import subprocess

import pytest

from gpt.trace.used import read_used
from tests.runtime import hooked
from tests.runtime.clients import LOOP
from tests.runtime.hooked import Trace
from tests.tiers import every, soak

MANY_FORKS = r"""
#include <sys/wait.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
static int compare(const void *a, const void *b) {
    return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}
int main(int argc, char **argv) {
    begin_trace();
    int version, count = atoi(argv[1]);
    double *ms = calloc(count, sizeof(*ms));
    for (int i = 0; i < count; i++) {
        double start = now();
        if (!fork()) {
            begin();
            void *f = kernel("foo");
            for (int j = 0; j < 6; j++)
                launch(f), cuDriverGetVersion(&version);
            exit(0);
        }
        wait(0);
        ms[i] = now() - start;
    }
    qsort(ms, count, sizeof(*ms), compare);
    printf("%f", ms[count / 2]);
}
"""


@pytest.mark.parametrize("calls", ["all", "all,-query"])
@pytest.mark.parametrize("count", [40, soak(1000)])
def test_a_fork_takes_little_room(tmp_path, calls, count):
    trace = hooked.traced(tmp_path, MANY_FORKS, options=("--calls", calls), args=[str(count)])
    assert len(trace.of("child")) == count
    assert sum(path.stat().st_size for path in tmp_path.glob("t.mp*")) < (count + 1) * (40 << 10)
    child = Trace(tmp_path / trace.of("child")[0]["path"])
    assert child.names["cuLaunchKernel"] == 6


@pytest.mark.soak
def test_a_fork_takes_little_time(tmp_path):
    """The start takes at most 2 ms more than without the hook; both are measured interleaved."""
    program = hooked.compile_c(tmp_path / "client", MANY_FORKS)
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    over = []
    for round_ in range(5):
        bare = subprocess.run([program, "100"], env=env, capture_output=True, text=True, check=True).stdout
        over.append(float(hooked.run(tmp_path / f"{round_}.mp", program, "100", options=()).stdout) - float(bare))
    assert sorted(over)[2] < 2


THREADS_AT_ONCE = r"""
#include <pthread.h>
static pthread_barrier_t all;
static void *work(void *arg) {
    int version;
    cuDriverGetVersion(&version);
    pthread_barrier_wait(&all);
    return arg;
}
int main(void) {
    begin();
    pthread_t threads[AT_ONCE];
    pthread_barrier_init(&all, 0, AT_ONCE);
    for (int i = 0; i < AT_ONCE; i++)
        assert(!pthread_create(&threads[i], 0, work, 0));
    for (int i = 0; i < AT_ONCE; i++)
        pthread_join(threads[i], 0);
}
"""


@pytest.mark.parametrize("count", [200, soak(2000)])
def test_a_thread_takes_little_room(tmp_path, count):
    trace = hooked.traced(tmp_path, THREADS_AT_ONCE, f"-DAT_ONCE={count}")
    assert trace.names["cuDriverGetVersion"] == count and len({call["thread"] for call in trace.calls}) == count + 1
    assert (tmp_path / "t.mp").stat().st_size < count * (8 << 10) + (64 << 10)


def test_chunks_grow(tmp_path):
    hooked.traced(tmp_path, LOOP, args=["100000"])
    data, sizes, at = (tmp_path / "t.mp").read_bytes(), [], 0
    while at < len(data):
        assert data[at : at + 14] == b"\x83\xd9\x04kind\xd9\x05chunk"
        sizes.append(int.from_bytes(data[at + 32 : at + 36], "big") + 36)
        at += sizes[-1]
    assert {4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10} == set(sizes)


def test_record_larger_than_the_next_chunk(tmp_path):
    words = ["x" * 60000, "1"]
    source = LOOP.replace("v[1]", "v[2]")
    trace = hooked.traced(tmp_path, source, args=words)
    assert trace.records[0]["argv"][1:] == words and trace.launches == {"foo": 1}


LIVE_THREADS = r"""
#include <pthread.h>
static _Atomic int ready;
static void *work(void *arg) {
    int version;
    for (int i = 0; i < 100000; i++)
        cuDriverGetVersion(&version);
    ready++;
    pause();
    return arg;
}
int main(void) {
    begin();
    pthread_t thread;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread, 0, work, 0);
    while (ready < 4)
        usleep(1000);
    ENDING;
}
"""


@pytest.mark.parametrize("ending", ["return 0", "_exit(0)", "kill(getpid(), 9)"])
def test_queries_of_threads_that_live_are_counted(tmp_path, ending):
    source = LIVE_THREADS.replace("ENDING", ending)
    program = hooked.compile_c(tmp_path / "client", source, "-includesignal.h")
    hooked.run(tmp_path / "t.mp", program, options=())
    trace = Trace(tmp_path / "t.mp")
    (api,) = {r["id"] for r in trace.of("api") if r["name"] == "cuDriverGetVersion"}  # two threads may each write it
    counted = [row for record in trace.of("counts") for row in hooked.rows(record) if row["api"] == api]
    assert [row["count"] for row in counted] == [100000] * 4 and all(row["first"] for row in counted)


def test_a_fork_without_libc_counts_its_own_queries(tmp_path):
    source = r"""
    #include <sys/syscall.h>
    #include <sys/wait.h>
    int main(void) {
        begin();
        int version;
        for (int i = 0; i < 10; i++)
            cuDriverGetVersion(&version);
        pid_t child = syscall(SYS_fork); // unknown to libc
        for (int i = 0; i < 100; i++)
            cuDriverGetVersion(&version);
        if (child)
            waitpid(child, 0, 0);
    }
    """
    trace = hooked.traced(tmp_path, source, options=())
    (child,) = trace.of("child")
    for found, count in ((trace, 110), (Trace(tmp_path / child["path"]), 100)):
        assert [row["count"] for record in found.of("counts") for row in hooked.rows(record)] == [count]


SPARE = r"""
#include <fcntl.h>
#include <sys/syscall.h>
static int launching, made;
int fallocate(int file, int mode, off_t at, off_t size) { // the hook's, too
    made += launching;
    return syscall(SYS_fallocate, file, mode, at, size);
}
int main(void) {
    begin();
    int (*cuStreamSynchronize)(void *) = dlsym(driver, "cuStreamSynchronize");
    void *f = kernel("foo");
    for (int i = 0; i < 100; i++) {
        launching = 1;
        for (int j = 0; j < 1000; j++)
            launch(f);
        launching = 0;
        OK(cuStreamSynchronize(0));
    }
    printf("%d", made);
}
"""


@pytest.mark.full
def test_the_next_chunk_is_made_before_a_launch_needs_it(tmp_path):
    program = hooked.compile_c(tmp_path / "client", SPARE, "-rdynamic")
    done = hooked.run(tmp_path / "t.mp", program)
    assert done.returncode == 0, done.stderr
    assert 1 <= int(done.stdout) <= 5  # the small chunks, and the chunk of counts
    assert Trace(tmp_path / "t.mp").names["cuLaunchKernel"] == 100000


# The file


@pytest.mark.parametrize("mask", [0, 0o777, 0o400])
def test_a_trace_is_its_owners(tmp_path, mask):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    assert hooked.run(tmp_path / "t.mp", program, "1", preexec_fn=lambda: os.umask(mask)).returncode == 0
    assert (tmp_path / "t.mp").stat().st_mode & 0o777 == 0o600


# Actions of a program between its first calls and calls that need more of the file.
LATER = {
    "closefrom": "closefrom(3);",
    "own file": 'for (int i = 3; i < 1100; i++) dup2(open("/dev/null", O_RDWR), i);',
    "EMFILE": "setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0});",
    "folder": 'assert(!rename("FOLDER", "FOLDER-away"));',
    "chroot": 'assert(!chroot("/proc") && !chdir("/"));',
    "setuid": "assert(!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));",
    "seccomp": r"""
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){4, code}, 0, 0));
    """,
}
AFTERWARDS = r"""
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
int main(void) {
    begin();
    void *f = kernel("foo");
    launch(f);
    DOING
    for (int i = 0; i < 30000; i++)
        launch(f);
}
"""


@pytest.mark.parametrize("name", every(2, LATER))
def test_later_changes_by_the_program_do_not_end_the_trace(tmp_path, name):
    if name in ("chroot", "setuid") and os.getuid():
        pytest.skip("needs root")
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    program = hooked.compile_c(
        tmp_path / "client", AFTERWARDS.replace("DOING", LATER[name]).replace("FOLDER", str(folder))
    )
    done = hooked.run(folder / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")
    trace = Trace(next(tmp_path.glob("folder*")) / "t.mp")
    assert trace.names["cuLaunchKernel"] == 30001 and trace.kinds["end"] == 1


def test_at_its_end_a_program_under_a_filter_opens_no_files(tmp_path):
    """A library was opened after the last call that made the hook look for libraries."""
    late = 'assert(dlopen("libresolv.so.2", RTLD_NOW)); ' + LATER["seccomp"]
    program = hooked.compile_c(tmp_path / "client", AFTERWARDS.replace("DOING", late))
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")
    trace = Trace(tmp_path / "t.mp")
    assert trace.names["cuLaunchKernel"] == 30001 and trace.kinds["end"] == 1
    assert [(diag["where"], diag["text"]) for diag in trace.of("diag")] == [
        ("libraries", "the process has a seccomp filter, so libraries that it opened last weren't recorded")
    ]


def test_a_daemon_that_closes_all_files_and_may_open_none_goes_on_without_a_trace(tmp_path):
    """The trace can't be opened again, because the filter would kill the program."""
    daemon = LATER["closefrom"] + LATER["seccomp"]
    program = hooked.compile_c(tmp_path / "client", AFTERWARDS.replace("DOING", daemon))
    done = hooked.run(tmp_path / "t.mp", program)
    assert done.returncode == 0
    assert done.stderr == (
        f"gpt-hook: error: {tmp_path}/t.mp: the program closed it, and a seccomp filter may forbid opening it again; "
        "nothing more is recorded\n"
    )
    trace = Trace(tmp_path / "t.mp")
    assert 1 <= trace.names["cuLaunchKernel"] < 30001 and not trace.kinds["end"]


def test_the_number_of_the_file_is_out_of_the_way(tmp_path):
    source = r"""
    #include <fcntl.h>
    int main(void) {
        int before = dup(0);
        close(before);
        begin();
        launch(kernel("foo"));
        int after = dup(0);
        assert(after == before);
        if (!fork()) { // has none of its parent
            for (int i = 3; i < 2000; i++)
                assert(fcntl(i, F_GETFD) < 0 || i == after);
            _exit(0);
        }
        int status;
        wait(&status);
        return status;
    }
    """
    hooked.traced(tmp_path, source, "-includesys/wait.h")


# Runs at once

WAITING = r"""
int main(int argc, char **argv) {
    begin();
    launch(kernel("foo"));
    puts("began");
    fflush(stdout);
    getchar();
}
"""


def test_runs_at_once_do_not_share_a_file(tmp_path):
    """When one run starts, the other may or may not have begun its trace."""
    program = hooked.compile_c(tmp_path / "client", WAITING)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    path = tmp_path / "t.mp"
    line = hooked.command("run", "-o", path, "--device", "sim", "--")
    with (
        subprocess.Popen([*line, "sh", "-c", f"read line; exec {program}"], **pipes) as late,
        subprocess.Popen([*line, program], **pipes) as first,
    ):
        assert first.stdout.readline() == "began\n"
        forced = hooked.run(path, program, options=("-f",))
        assert forced.returncode == 1
        assert forced.stderr == (
            f"gpt-hook: error: {path}: another run writes to it; wait for its end, or choose another file\n"
        )
        assert late.communicate("go\nend\n")[1] == (
            f"gpt-hook: error: {path}: another run of gpt-hook is writing to it, or it isn't a trace; "
            "nothing more is recorded\n"
        )
        assert late.returncode == 0
        assert first.communicate("\n")[1] == "" and first.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["client", "client.c", "t.mp"]
    trace = Trace(path)
    assert trace.launches == {"foo": 1} and not trace.of("child") and trace.kinds["header"] == 1
    assert set(read_used([path], allow_incomplete=False).names) == {"foo"}
    assert hooked.run(path, program, options=("-f",), stdin=subprocess.DEVNULL).returncode == 0


# The end

ENDS = r"""
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
static _Atomic int inside;
static int wait_in(struct dl_phdr_info *info, size_t size, void *data) {
    inside = 1;
    pause();
    return 1;
}
static void *hold(void *arg) {
    dl_iterate_phdr(wait_in, 0);
    return arg;
}
static void leave(int signal) { _exit(7); }
int main(void) {
    begin();
    launch(kernel("foo"));
    DOING
}
"""
ENDINGS = {
    "another thread holds a lock of the dynamic linker": """
    pthread_t thread;
    pthread_create(&thread, 0, hold, 0);
    while (!inside)
        usleep(1000);
    _exit(7);
    """,
    "on a small stack, after a library was loaded": """
    size_t size = (getauxval(AT_MINSIGSTKSZ) + 4096 + 4095) / 4096 * 4096;
    char *stack = mmap(0, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(stack != MAP_FAILED && !mprotect(stack, 4096, PROT_NONE));
    assert(!sigaltstack(&(stack_t){.ss_sp = stack + 4096, .ss_size = size}, 0));
    assert(!sigaction(SIGUSR1, &(struct sigaction){.sa_handler = leave, .sa_flags = SA_ONSTACK}, 0));
    assert(dlopen("libutil.so.1", RTLD_NOW));
    raise(SIGUSR1);
    """,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_exit_does_not_wait_and_needs_little_stack(tmp_path, name):
    program = hooked.compile_c(tmp_path / "client", ENDS.replace("DOING", ENDINGS[name]))
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (7, "")
    trace = Trace(tmp_path / "t.mp")
    assert trace.records[-1]["kind"] == "end" and trace.records[-1]["status"] == 7
    assert any("libutil" in library["path"] for library in trace.of("library")) == ("library" in name)
