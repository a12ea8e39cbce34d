"""gpt-hook -p: a signal handler that launches, or exits, at any moment of another launch.

The simulated device doesn't allow launches from a handler that interrupted its own code, so the handler only acts if
the signal interrupted code of the hook.
"""

import pytest

from tests.runtime.probing import CLIENT, PTX, build, in_both_forms, probed, unprobed

LAUNCHES = 6000
SOURCE = (
    "#include <link.h>\n#include <setjmp.h>\n#include <signal.h>\n#include <sys/time.h>\n#include <ucontext.h>\n"
    + CLIENT
    + r"""
static void *stream;
static volatile int made, handled, within;
static uintptr_t hook, hook_end;
static int find_hook(struct dl_phdr_info *info, size_t size, void *unused) {
    for (int i = 0; strstr(info->dlpi_name, "libgpthook.so") && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_flags & PF_X) {
            hook = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            hook_end = hook + info->dlpi_phdr[i].p_memsz;
        }
    return 0;
}
static int is_in_hook(void *context) {
    uintptr_t at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    return within && at >= hook && at < hook_end;
}
static sigjmp_buf out;
static void one(void *into) {
    void *params[] = {&items, &added, &count};
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, into, params, NULL));
}
static void launch_too(int signal, siginfo_t *info, void *context) {
    if (!is_in_hook(context))
        return;
    handled++;
    one(stream);
}
static void leave(int signal, siginfo_t *info, void *context) {
    if (is_in_hook(context)) {
        handled++;
        siglongjmp(out, 1);
    }
}
int main(int argc, char **argv) {
    struct itimerval often = {{0, 50}, {0, 50}}, never = {0};
    unsigned sum;
    size_t size;
    count = 32;
    setup(argv[1]);
    OK(D(cuStreamCreate)(&stream, 1));
    for (int i = 0; i < 20; i++)
        one(NULL), made++;
    sigaction(SIGALRM, &(struct sigaction){.sa_sigaction = strcmp(argv[2], "leave") ? launch_too : leave,
                                              .sa_flags = SA_SIGINFO}, NULL);
    dl_iterate_phdr(find_hook, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (volatile int i = 0; i < LAUNCHES; i++) {
        if (sigsetjmp(out, 1)) {
            within = 0;
            continue;
        }
        within = 1;
        one(NULL);
        within = 0;
        made++;
        if (i % 300 == 299)
            OK(D(cuStreamSynchronize)(NULL));
    }
    setitimer(ITIMER_REAL, &never, NULL);
    OK(D(cuCtxSynchronize)());
    OK(D(cuModuleGetGlobal_v2)(&total, &size, module, "total"));
    OK(D(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
    printf("%d %d %u\n", made, handled, sum / count);
    return 0;
}
""".replace("LAUNCHES", str(LAUNCHES))
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("signals"), SOURCE)


def play(folder, program, how):
    """Return the trace, and the program's counts of launches: made, made by the handler, and run by the device."""
    done, trace = probed(folder, program, "-p", "gmem_bytes", arguments=(PTX, how))
    assert (done.returncode, done.stderr) == (0, "")
    assert not unprobed(trace)
    assert {r["launch"] for r in trace.of("buffer")} == {r["id"] for r in trace.of("probed")}
    return trace, *map(int, done.stdout.split())


@pytest.mark.full
@in_both_forms
def test_signal_handler_launches_within_a_launch(tmp_path, program):
    trace, made, handled, ran = play(tmp_path, program, "launch")
    assert handled and made + handled == ran == len(trace.of("probed"))
    assert not any("lost" in r for r in trace.of("buffer"))


@in_both_forms
def test_signal_handler_jumps_out_of_a_launch(tmp_path, program):
    """The interrupted launch may have reached the device. No later launch is affected."""
    trace, made, handled, ran = play(tmp_path, program, "leave")
    assert handled and made <= len(trace.of("probed")) <= ran
