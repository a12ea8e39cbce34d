"""A trace that's truncated while it's being written, and the resulting signal in the program."""

import signal

import pytest

from tests.runtime import hooked
from tests.runtime.clients import LOOP, THREADS
from tests.runtime.hooked import Trace


@pytest.mark.parametrize("sizes", [[0], [700000], [0, 1 << 30]], ids=["empty", "shorter", "long again"])
def test_truncating_a_trace_is_harmless(tmp_path, sizes):
    """If another thread adds a chunk at that moment, the file has its length back, and no signal is sent."""
    cuts = "".join(f'assert(!truncate("{tmp_path}/t.mp", {size}));' for size in sizes)
    source = LOOP.replace(
        "begin();", f'begin(); void *g = kernel("bar"); for (int i = 0; i < 50000; i++) launch(g); {cuts}'
    )
    program = hooked.compile_c(tmp_path / "client", source.replace("launch(f); }", "launch(f); return 7; }"))
    done = hooked.run(tmp_path / "t.mp", program, "100000")
    assert done.returncode == 7
    assert done.stderr == f"gpt-hook: error: {tmp_path}/t.mp: was truncated; nothing more is recorded\n"


def test_a_stopped_recording_makes_no_system_calls(tmp_path):
    """A seccomp filter kills the program if its signal mask is changed, as every slow path through the hook would
    do.
    """
    source = LOOP.replace(
        "begin();",
        f"""begin();
    void *g = kernel("bar");
    assert(!truncate("{tmp_path}/t.mp", 0));
    launch(g);
    struct sock_filter code[] = {{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){{4, code}}, 0, 0));
    for (int v, i = 0; i < 100; i++)
        OK(cuDriverGetVersion(&v));
    _exit(7);""",
    )
    headers = ["linux/filter.h", "linux/seccomp.h", "sys/prctl.h", "sys/syscall.h"]
    program = hooked.compile_c(tmp_path / "client", "".join(f"#include <{h}>\n" for h in headers) + source)
    assert hooked.run(tmp_path / "t.mp", program, "1").returncode == 7


def test_truncating_under_load(tmp_path):
    source = THREADS.replace(
        "for (int round = 0;", 'pthread_t cutter; pthread_create(&cutter, 0, cut, 0);\n    for (int round = 0;'
    ).replace(
        "static void *work", f'static void *cut(void *arg) {{ usleep(20000); truncate("{tmp_path}/t.mp", 0); '
        "return arg; }\nstatic void *work"
    ).replace("5000", "100000")  # fmt: skip
    program = hooked.compile_c(tmp_path / "client", source, "-DROUNDS=2", "-DAT_ONCE=8", "-Wno-unused-result")
    done = hooked.run(tmp_path / "t.mp", program)
    assert done.returncode == 0, done
    assert done.stderr.count("was truncated") == 1


OWN = r"""
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
static sigjmp_buf back;
static volatile int hits;
static char *beyond(void) { // memory after the end of a file
    int file = open("FILE", O_RDWR | O_CREAT | O_TRUNC, 0666);
    char *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert(memory != MAP_FAILED);
    return memory;
}
static void caught(int signal, siginfo_t *info, void *context) { hits++, siglongjmp(back, 1); }
static void plain(int signal) { hits++; }
int main(void) {
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER}, old = {0};
    EARLY
    begin();
    launch(kernel("foo"));
    CODE
}
"""


def own(tmp_path, code, early="") -> tuple:
    source = OWN.replace("FILE", f"{tmp_path}/file").replace("CODE", code).replace("EARLY", early)
    done = hooked.run(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source))
    assert Trace(tmp_path / "t.mp").launches == {"foo": 1}
    return done.returncode, done.stderr


def test_the_handler_of_the_program_is_called(tmp_path):
    code = r"""
    assert(!sigaction(SIGBUS, 0, &old) && old.sa_handler == SIG_DFL && !old.sa_flags);
    assert(!sigaction(SIGBUS, &action, &old) && old.sa_handler == SIG_DFL);
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1))
            *beyond() = 1;
    assert(hits == 3);
    assert(signal(SIGBUS, plain) == (void *)caught && !raise(SIGBUS) && hits == 4);
    assert(!sigaction(SIGBUS, 0, &old) && old.sa_handler == plain && old.sa_flags & SA_RESTART);
    assert(signal(SIGBUS, SIG_IGN) == plain && !raise(SIGBUS) && hits == 4);
    assert(signal(SIGUSR1, plain) == SIG_DFL && !raise(SIGUSR1) && hits == 5);
    return 0;
    """
    assert own(tmp_path, code) == (0, "")


def test_handler_older_than_the_trace(tmp_path):
    early = "assert(!sigaction(SIGBUS, &action, 0));"
    code = "if (!sigsetjmp(back, 1))\n *beyond() = 1;\n assert(hits == 1); return 0;"
    assert own(tmp_path, code, early) == (0, "")


@pytest.mark.parametrize("code", ["*beyond() = 1;", "raise(SIGBUS);", "signal(SIGBUS, SIG_IGN); *beyond() = 1;",
    "action.sa_flags |= SA_RESETHAND; sigaction(SIGBUS, &action, 0); if (!sigsetjmp(back, 1)) *beyond() = 1; "
    "*beyond() = 1;"])  # fmt: skip
def test_without_a_handler_the_program_dies_as_it_would(tmp_path, code):
    assert own(tmp_path, code + "return 0;") == (-signal.SIGBUS, "")
