"""gpt-hook -p: kernels run with probes, results are unchanged, and buffers reach the trace. On the simulated device."""

import os
import signal
import stat
import subprocess
import time

import pytest

from gpt.trace.params import parse_arguments
from tests.runtime import hooked
from tests.runtime.probing import (
    BLOCKS,
    CLIENT,
    COUNT,
    FORMS,
    PTX,
    THREADS,
    buffers,
    build,
    by_warp,
    check_bytes,
    good,
    in_both_forms,
    in_both_forms_at_once,
    probed,
    saved,
    unprobed,
)
from tests.tiers import first, full


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    return build(tmp_path_factory.mktemp("forms"), FORMS)


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """Return a program that launches as often as its second argument says."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        for (int i = 0; i < atoi(argv[2]); i++)
            run();
        check();
        return 0;
    }
    """
    )
    return build(tmp_path_factory.mktemp("launches"), source)


@in_both_forms_at_once
def test_every_form_of_a_launch(tmp_path, forms, code):
    trace = good(tmp_path, forms, "-p", "gmem_bytes", "-p", "block_sched")
    check_bytes(trace, 5)
    assert trace.launches == {"scale": 5}  # what the program launched
    assert not trace.of("unprobed")
    for record in trace.of("probed"):
        assert (record["grid"], record["block"]) == ([BLOCKS, 1, 1], [THREADS, 1, 1])
        params = next(r["params"] for r in trace.of("kernel") if "params" in r)
        arguments = [(one.type, one.value) for one in parse_arguments(params, record["params"])[1:]]
        untyped = [("", value.to_bytes(4, "little")) for value in (5, COUNT)]
        assert arguments == ([("u32", 5), ("u32", COUNT)] if code == "ptx" else untyped)
    starts = {call["start"] for call in trace.calls if call["op"] == "launch"}
    assert {record["start"] for record in trace.of("probed")} == starts
    kernels = trace.of("kernel")
    assert {r["id"] for r in kernels} == {1} and kernels[0]["function"] == trace.of("function")[0]["id"]
    for units in buffers(trace, "block_sched").values():
        assert (units["slots"]["start"] < units["slots"]["stop"]).all()


def counting(folder):
    """Return a pipeline that counts its runs and requests, and the file with the counts."""
    log = folder / "log"
    stage = folder / "counted"
    stage.write_text(f"#!/bin/sh\necho run >>'{log}'\nexec gpt-extract --ptx\n")
    stage.chmod(stage.stat().st_mode | stat.S_IXUSR)
    return f"'{stage}' | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH", log


def test_woven_code_is_cached(tmp_path, launches):
    pipeline, log = counting(tmp_path)
    for _ in range(2):
        check_bytes(good(tmp_path, launches, "--jit", pipeline, arguments=(PTX, "3")), 3)
    assert log.read_text() == "run\n"


@pytest.mark.full
def test_registers_before_are_those_of_the_programs_kernel(tmp_path, launches):
    told = 'if .kind == "kernel" then .registers = 40 else . end'  # as ptxas would report for the kernel with probes
    passed = f"gpt-ptx-probe -p gmem_bytes --json | jq -c --unbuffered '{told}' | gpt-asm --from-json --arch $GPT_ARCH"
    trace = good(tmp_path, launches, "--jit", f"gpt-extract --ptx | {passed}", arguments=(PTX, "1"))
    kernels = [kernel for kernel in trace.of("kernel") if "registers" in kernel]
    assert [(kernel["registers"], kernel["registers_before"]) for kernel in kernels] == [(40, 32)]


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        full("false", "the pipeline failed"),
        ("cat", "the pipeline returned no kernel for it"),
        full("echo no stream", "the pipeline failed"),
        full("gpt-extract --ptx | gpt-asm --arch host", "the pipeline returned no kernel for it"),
    ],
)
def test_program_runs_unchanged_if_the_pipeline_makes_nothing(tmp_path, launches, pipeline, reason):
    trace = good(tmp_path, launches, "--jit", pipeline, arguments=(PTX, "3"))
    ((found, count),) = unprobed(trace).items()
    assert count == 3 and found.startswith(reason)
    assert not trace.of("probed")


@in_both_forms
@pytest.mark.parametrize(
    ("options", "with_probes", "without"),
    [
        full(("--launch-skip", "4"), 6, 4),
        full(("--launch-count", "3"), 3, 7),
        full(("--sample", "1/4"), 3, 7),
        (("--launch-skip", "1", "--launch-count", "2", "--sample", "1/3"), 2, 8),
        (("-k", "nothing:scal"), 10, 0),
        full(("-k", "nothing"), 0, 0),
        (("--filter", "scale"), 0, 0),
        (("--max-memory", "100"), 0, 10),
    ],
)
def test_which_launches(tmp_path, launches, options, with_probes, without):
    trace = good(tmp_path, launches, "-p", "gmem_bytes", *options, arguments=(PTX, "10"))
    assert len(trace.of("probed")) == with_probes
    assert sum(unprobed(trace).values()) == without
    if with_probes:
        check_bytes(trace, with_probes)


@in_both_forms
@pytest.mark.full
@pytest.mark.parametrize("option", ["--launch-skip", "--launch-count"])
def test_launch_refused_by_driver_is_not_counted(tmp_path, option):
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        void *params[] = {&items, &added, &count};
        for (int i = 0; i < 5; i++) {
            IS(1, cuLaunchKernel(function, 6, 1, 1, 1025, 1, 1, 0, NULL, params, NULL));
            run();
        }
        check();
        return 0;
    }
    """
    )
    done, trace = probed(tmp_path, build(tmp_path, source), "-p", "gmem_bytes", option, "3")
    fact = "kernel 'scale': threads in a dimension of the block: 1025 given, 1024 allowed"
    assert done.returncode == 0 and {*done.stderr.splitlines()} == {f"libcuda.so.1: error: {fact}"}
    with_probes = {"--launch-skip": 2, "--launch-count": 3}[option]
    assert (len(trace.of("probed")), *unprobed(trace).values()) == (with_probes, 5 - with_probes)


@in_both_forms
@pytest.mark.full
def test_launches_without_a_free_buffer_are_counted_or_wait(tmp_path):
    """Buffers have 720 KB, and there's space for two of them."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        void *params[] = {&items, &added, &count};
        for (int i = 0; i < 12; i++)
            OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        for (int i = 0; i < 12; i++)
            expect(3);
        check();
        return 0;
    }
    """
    )
    program = build(tmp_path, source)
    options = ("-p", by_warp(), "--max-memory", "2M")
    some = good(tmp_path, program, *options)
    assert len(some.of("probed")) + sum(unprobed(some).values()) == 12
    assert len(some.of("probed")) >= 2
    every = good(tmp_path, program, *options, "--complete")
    assert len(every.of("probed")) == len(every.of("buffer")) == 12
    for units in saved(tmp_path / "t.mp", "gmem_bytes").values():
        assert units.counts.shape == (3000, 5) and (units.counts == 32).all()
        assert units.slots["read"].sum() == 8 * COUNT


@in_both_forms
def test_streams_with_equal_hashes_are_recognized(tmp_path):
    """In the past, the upper 12 bits of this hash gave each stream its only place in a table, so two streams could
    displace each other.
    """
    source = (
        CLIENT
        + r"""
    static unsigned place(void *stream) { return (unsigned long)stream * 0x9e3779b97f4a7c15u >> 52; }
    int main(int argc, char **argv) {
        void *stream, *others[4096] = {NULL}, *params[] = {&items, &added, &count};
        setup(argv[1]);
        for (int i = 0; i < 4096; i++) {
            (void)!malloc(16 + 16 * (size_t)(rand() % 1000)); // so that handles are no arithmetic progression
            OK(D(cuStreamCreate)(&stream, 1));
            if (others[place(stream)])
                break;
            others[place(stream)] = stream;
        }
        assert(others[place(stream)] != stream);
        for (int i = 0; i < 10; i++)
            OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, i % 2 ? stream : others[place(stream)], params, NULL));
        return 0;
    }
    """
    )
    trace = good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes")
    assert (len(trace.of("probed")), unprobed(trace)) == (10, {})


def test_the_end_of_a_context_leaves_streams_of_others_known(tmp_path):
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        void *stream, *other, *params[] = {&items, &added, &count};
        setup(argv[1]);
        OK(D(cuStreamCreate)(&stream, 1));
        for (int i = 0; i < 10; i++) {
            OK(D(cuCtxCreate_v2)(&other, 0, 0));
            OK(D(cuCtxDestroy_v2)(other));
            OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
        }
        return 0;
    }
    """
    )
    trace = good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes")
    assert (len(trace.of("probed")), unprobed(trace)) == (10, {})


@pytest.mark.full
def test_threads_wait_for_each_others_launches(tmp_path):
    """There are four buffers for twelve streams. While all are in flight, a thread waits for the next one to become
    free.
    """
    source = (
        CLIENT
        + r"""
    static void *context;
    static void *work(void *unused) {
        unsigned none = 0;
        void *params[] = {&items, &added, &none}, *stream;
        OK(D(cuCtxSetCurrent)(context));
        OK(D(cuStreamCreate)(&stream, 1));
        for (int i = 0; i < 300; i++)
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
        OK(D(cuStreamSynchronize)(stream));
        return NULL;
    }
    int main(int argc, char **argv) {
        pthread_t threads[12];
        setup(argv[1]);
        OK(D(cuCtxGetCurrent)(&context));
        for (int i = 0; i < 12; i++)
            pthread_create(&threads[i], NULL, work, NULL);
        for (int i = 0; i < 12; i++)
            pthread_join(threads[i], NULL);
        check();
        return 0;
    }
    """
    )
    program = build(tmp_path, source)
    for _ in range(3):
        trace = good(tmp_path, program, "-p", by_warp(), "--max-memory", "4K", "--complete")
        assert (len(trace.of("probed")), unprobed(trace)) == (3600, {})


@in_both_forms
def test_variables_are_the_programs(tmp_path):
    """Constants are written between launches, before and after their address is requested."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        size_t size;
        setup(argv[1]);
        run();
        OK(D(cuModuleGetGlobal_v2)(&factor, &size, module, "factor"));
        for (unsigned by = 7; by < 10; by++) {
            void *params[] = {&items, &added, &count};
            OK(D(cuMemcpyHtoDAsync_v2)(factor, &by, (size_t)4, NULL));
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, params, NULL));
            expect(by);
        }
        check();
        return 0;
    }
    """
    )
    check_bytes(good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes"), 4)


@in_both_forms_at_once
def test_a_library_and_its_kernels(tmp_path):
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        void *library, *kernel, *of_kernel;
        setup(argv[1]);
        FILE *file = fopen(argv[1], "r");
        assert(fread(text, 1, sizeof(text) - 1, file));
        OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
        OK(D(cuLibraryGetKernel)(&kernel, library, "scale"));
        OK(D(cuKernelGetFunction)(&of_kernel, kernel));
        OK(D(cuLibraryGetModule)(&module, library));
        function = kernel, run();
        function = of_kernel, run();
        check();
        return 0;
    }
    """
    )
    check_bytes(good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes"), 2)


@in_both_forms
def test_module_loaded_and_unloaded(tmp_path):
    """Handles are reused; each module has its own kernel with probes, and its own variables."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        for (int i = 0; i < 5; i++) {
            times = 0;
            setup(argv[1]);
            run(), check();
            OK(D(cuModuleUnload)(module));
        }
        return 0;
    }
    """
    )
    check_bytes(good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes"), 5)


@in_both_forms
def test_threads_and_streams(tmp_path):
    source = (
        CLIENT
        + r"""
    static void *work(void *unused) {
        CUdeviceptr mine;
        void *stream, *context, *params[] = {&mine, &added, &count};
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        OK(D(cuMemAlloc_v2)(&mine, (size_t)sizeof(want)));
        OK(D(cuStreamCreate)(&stream, 1));
        for (int i = 0; i < 50; i++) {
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, i % 3 ? stream : (void *)2, params, NULL));
            if (i % 10 == 9)
                OK(D(cuStreamSynchronize)(stream));
        }
        OK(D(cuStreamDestroy_v2)(stream));
        return NULL;
    }
    int main(int argc, char **argv) {
        pthread_t threads[4];
        setup(argv[1]);
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, work, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }
    """
    )
    check_bytes(good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes"), 200)


@in_both_forms
@pytest.mark.parametrize(
    "end", first("_exit(0)", "quick_exit(0)", "exit(0)", "D(cuDevicePrimaryCtxReset_v2)(0), _exit(0)")
)
def test_pending_buffers_are_awaited_at_the_end(tmp_path, end):
    source = CLIENT + f"int main(int argc, char **argv) {{ setup(argv[1]); run(); run(); {end}; }}"
    check_bytes(good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes"), 2)


@in_both_forms
@pytest.mark.full
def test_a_child_of_fork_and_a_kill(tmp_path):
    source = (
        CLIENT
        + r"""
    #include <sys/wait.h>
    int main(int argc, char **argv) {
        setup(argv[1]);
        run();
        if (!fork())
            exit(0);
        wait(NULL);
        OK(D(cuCtxSynchronize)());
        usleep(200000); // copied buffers get written
        run();
        kill(getpid(), 9);
    }
    """
    )
    program = build(tmp_path, "#include <signal.h>\n" + source)
    done, trace = probed(tmp_path, program, "-p", "gmem_bytes")
    assert done.returncode == -signal.SIGKILL
    assert sum(row["probed"] for record in trace.of("launches") for row in hooked.rows(record)) == 2
    assert len(trace.of("probed")) == 1
    assert len(trace.of("buffer")) == 1


@pytest.mark.full
def test_late_pipeline_is_used_later(tmp_path):
    """With --wait 0, a look-up doesn't wait; the kernel is loaded when the program waits for the GPU."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        run();
        for (int i = 0; i < 600 && access(argv[2], F_OK); i++)
            usleep(50000);
        usleep(1000000); // the rest of the pipeline
        OK(D(cuCtxSynchronize)());
        run();
        check();
        return 0;
    }
    """
    )
    made = tmp_path / "made"
    pipeline = f"gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH | tee '{made}.part'"
    stage = tmp_path / "late"
    stage.write_text(f"#!/bin/sh\n(sleep 0.5; touch '{made}') &\n{pipeline}\n")
    stage.chmod(0o755)
    trace = good(tmp_path, build(tmp_path, source), "--wait", "0", "--jit", str(stage), arguments=(PTX, made))
    late = "it was not looked up by name, or is still being compiled"
    assert len(trace.of("probed")) + unprobed(trace).get(late, 0) == 2
    assert unprobed(trace)[late] >= 1


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("-p", "nonsense"), 4, "nonsense"),
        (("-p", "gmem_bytes", "--jit", "cat"), 2, "--jit"),
        (("--jit", " "), 2, "--jit: no pipeline"),
        (("--wait", "3"), 2, "without -p or --jit"),
        (("-p", "gmem_bytes", "--wait", "soon"), 2, "not a number: 'soon'"),
        (("-p", "gmem_bytes", "--launch-skip", "1.5"), 2, "not a number: '1.5'"),
        (("-p", "gmem_bytes", "--sample", "1/0"), 2, "not a share: '1/0'"),
        (("-p", "gmem_bytes", "--max-memory", "2X"), 2, "not a size: '2X'"),
        *((("-p", "gmem_bytes", "--max-memory", size), 2, "not a size") for size in ("0", "0x100000", "9999999999G")),
    ],
)
def test_invalid_options_are_refused(tmp_path, launches, options, status, said):
    done, trace = probed(tmp_path, launches, *options, arguments=(PTX, "1"))
    assert done.returncode == status and said in done.stderr and trace is None
    assert done.stderr.count("\n") == 1


@pytest.mark.full
def test_the_line_at_the_end(tmp_path, launches):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path)}
    line = [*hooked.command("run", quiet=False), "-o", tmp_path / "t.mp", "--device", "sim"]
    line += ["-p", "gmem_bytes", "--launch-count", "2", launches, PTX, "5"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.splitlines()[1].startswith("gpt-hook: 2 launches with probes, 3 without: ")


@in_both_forms
@pytest.mark.full
def test_the_broker_is_killed(tmp_path):
    """The program's own kernels run, and existing results are kept."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        for (int i = 0; i < 100; i++) {
            run();
            OK(D(cuModuleGetFunction)(&(void *){NULL}, module, "other"));
            usleep(20000);
        }
        check();
        return 0;
    }
    """
    )
    program = build(tmp_path, source)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "-p", "gmem_bytes", program, PTX)
    with subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(1)
        subprocess.run(["pkill", "-9", "-f", f"gpt-hook.*{tmp_path}"], check=False)
        assert process.wait(60) in (0, -9)
