"""gpt-hook -p: whatever a program does, and whatever fails, it runs as it would without probes."""

import os
import sys

import pytest

from gpt.stream.reasons import parse
from tests.runtime import hooked
from tests.runtime.probing import (
    CLIENT,
    PTX,
    build,
    by_warp,
    check_bytes,
    good,
    kept,
    probed,
    unprobed,
)
from tests.runtime.simulated import compile_cuda, needs_cxx

pytestmark = pytest.mark.full

# Makes launches whose buffers are 720 KB, next to the trace; each waits until its buffers are written.
LARGE = (
    CLIENT
    + r"""
#include <sys/stat.h>
static void large(void) {
    void *params[] = {&items, &added, &count};
    OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
    expect(3);
    OK(D(cuCtxSynchronize)());
    usleep(300000);
}
"""
)


def run_main(folder, body, *options, before=CLIENT, **more):
    program = build(folder, f"{before}\nint main(int argc, char **argv) {{ setup(argv[1]); {body} return 0; }}")
    return good(folder, program, "-p", by_warp(), *options, **more)


def lost(trace):
    return [record.get("lost") and str(parse(record["lost"])) for record in trace.of("buffer")]


def test_a_vfork_child_may_call_exit(tmp_path):
    """A vfork child that can't run its program calls _exit."""
    before = (
        CLIENT
        + r"""
    __attribute__((noinline)) static void begin_child(void) {
        if (!vfork()) {
            execl("/nonexistent", "x", NULL);
            _exit(127);
        }
    }
    """
    )
    check_bytes(run_main(tmp_path, "run(); begin_child(); run(); begin_child(); run(); check();", before=before), 3)


def test_child_forked_before_the_first_call(tmp_path):
    """A child that was forked before anything was loaded gets probes like any other process."""
    source = (
        "#include <sys/wait.h>\n"
        + CLIENT
        + r"""
    int main(int argc, char **argv) {
        int status;
        if (fork()) {
            wait(&status);
            return WEXITSTATUS(status);
        }
        setup(argv[1]);
        run(), run(), check();
        exit(0);
    }
    """
    )
    good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes")
    (child,) = (hooked.Trace(path) for path in tmp_path.glob("t.mp*") if hooked.Trace(path).of("probed"))
    check_bytes(child, 2)


def test_parameters_are_the_drivers_to_refuse(tmp_path):
    body = r"""
        struct { CUdeviceptr items; unsigned added, count, more[4]; } packed = {items, added, count, {0}};
        size_t size = 12;
        void *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
        run();
        IS(1, cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, NULL, extra));
        IS(1, cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, NULL, NULL));
        IS(1, cuLaunchKernel(function, 0, 1, 1, 70, 1, 1, 0, NULL, NULL, extra));
        void *params[] = {&items, &added, &count};
        IS(1, cuLaunchKernel(function, 0, 1, 1, 70, 1, 1, 0, NULL, params, NULL));
        IS(1, cuLaunchKernel(function, 1, 1, 1, 7000, 1, 1, 0, NULL, params, NULL));
        IS(1, cuLaunchKernel(function, 1, 1, 1, 70, 1, 1, 1 << 30, NULL, params, NULL));
        IS(1, cuLaunchKernel(function, 1, 70000, 1, 70, 1, 1, 0, NULL, params, NULL));
        size = sizeof(packed);
        OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, NULL, extra));
        expect(3);
        check();
    """
    trace = run_main(tmp_path, body)
    check_bytes(trace, 2)
    assert trace.launches == {"scale": 2}


def test_kernel_faults(tmp_path):
    """The program gets its error as usual, and its buffers are reported as lost."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        setup(argv[1]);
        run();
        OK(D(cuCtxSynchronize)());
        usleep(300000);
        items = 16;
        run();
        IS(700, D(cuCtxSynchronize)());
        void *params[] = {&items, &added, &count};
        IS(700, cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, params, NULL));
        return 3;
    }
    """
    )
    done, trace = probed(tmp_path, build(tmp_path, source), "-p", "gmem_bytes")
    assert done.returncode == 3
    assert "illegal address" in done.stderr
    assert len(trace.of("probed")) == 2
    assert lost(trace) == [None, "the device failed"]


def test_numbers_of_descriptors_that_the_program_takes(tmp_path):
    """The program closes all descriptors; no buffer is written to one of its files."""
    body = r"""
        large();
        for (int i = 3; i < 1100; i++)
            close(i);
        char name[8192];
        snprintf(name, sizeof(name), "%s/mine", argv[2]);
        for (int i = 0; i < 900; i++) {
            int file = open(name, O_RDWR | O_CREAT, 0600);
            assert(file >= 0);
        }
        large(), large();
        struct stat found;
        OK(stat(name, &found));
        assert(!found.st_size);
        check();
    """
    trace = run_main(tmp_path, body, before="#include <fcntl.h>\n" + LARGE, arguments=(PTX, tmp_path))
    assert lost(trace) == [None, None, None]
    assert {record["path"] for record in trace.of("buffer")} == {"t.mp.buffers"}


def test_file_named_like_the_buffers(tmp_path):
    """The file belongs to another program, or to a run whose trace was moved, so it must not be touched."""
    beside = tmp_path / "t.mp.buffers"
    beside.write_text("mine")
    trace = run_main(tmp_path, "large(); check();", before=LARGE)
    assert beside.read_text() == "mine"
    assert [record["path"] for record in trace.of("buffer")] == ["t.mp.buffers.2"]
    run_main(tmp_path, "check();")  # -f
    assert not beside.exists()
    assert not (tmp_path / "t.mp.buffers.2").exists()


def test_a_stream_of_another_context(tmp_path):
    """The stream is destroyed from within another context."""
    body = r"""
        void *own, *other, *stream, *params[] = {&items, &added, &count};
        OK(D(cuCtxGetCurrent)(&own));
        OK(D(cuStreamCreate)(&stream, 1));
        for (int i = 0; i < 3; i++) {
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
            expect(3);
        }
        OK(D(cuStreamSynchronize)(stream));
        OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
        expect(3);
        OK(D(cuCtxCreate_v2)(&other, 0, 0));
        OK(D(cuStreamDestroy_v2)(stream));
        OK(D(cuCtxSetCurrent)(own));
        OK(D(cuCtxSynchronize)());
        check();
    """
    trace = run_main(tmp_path, body)
    check_bytes(trace, 4)
    assert lost(trace) == [None] * 4


def test_the_default_stream_of_a_thread_that_is_gone(tmp_path):
    """The stream's buffers are copied when its kernels have ended."""
    body = r"""
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, NULL);
    """
    before = (
        CLIENT
        + r"""
    static void *work(void *unused) {
        void *context, *params[] = {&items, &added, &count};
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        for (int i = 0; i < 200; i++)
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, (void *)2, params, NULL));
        return NULL;
    }
    """
    )
    check_bytes(run_main(tmp_path, body, before=before), 200)


def test_launches_before_cuda_4(tmp_path):
    """Launches in the form from before CUDA 4.0 run without probes, and are counted."""
    body = r"""
        void *stream;
        OK(D(cuStreamCreate)(&stream, 0));
        IS(1, D(cuLaunchGrid)(function, 6, 1));
        OK(D(cuFuncSetBlockShape)(function, 70, 1, 1));
        OK(D(cuFuncSetSharedSize)(function, 16));
        OK(D(cuParamSetv)(function, 0, &items, 8));
        OK(D(cuParamSeti)(function, 8, added));
        OK(D(cuParamSeti)(function, 12, count));
        OK(D(cuParamSetSize)(function, 16));
        OK(D(cuLaunchGrid)(function, 6, 1));
        expect(3);
        OK(D(cuLaunchGridAsync)(function, 3, 2, stream)); // its blocks (*, 1) do what (*, 0) do
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuMemcpyHtoD_v2)(items, want, sizeof(want)));
        OK(D(cuFuncSetBlockShape)(function, 1024, 1, 1));
        OK(D(cuLaunch)(function));
        expect(3);
        run();
        unsigned found[420];
        OK(D(cuMemcpyDtoH_v2)(found, items, sizeof(found)));
        assert(!memcmp(found, want, sizeof(want)));
    """
    trace = run_main(tmp_path, body)
    check_bytes(trace, 1)
    assert trace.launches == {"scale": 4}
    assert unprobed(trace) == {"it was launched by a function that CUDA has deprecated": 3}


def test_pools_of_memory_are_the_programs(tmp_path):
    """The hook's memory comes neither from the device's default pool nor from a small pool that the program made
    current.
    """
    body = r"""
        CUmemPoolProps props = {.allocType = 1, .location = {1, 0}, .maxSize = 1 << 20};
        void *pool, *own;
        OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
        OK(D(cuMemPoolCreate)(&own, &props));
        for (int i = 0; i < 4; i++) {
            uint64_t used = 1, most = 1;
            run();
            OK(D(cuCtxSynchronize)());
            OK(D(cuMemPoolGetAttribute)(i < 2 ? pool : own, 7, &used));
            OK(D(cuMemPoolGetAttribute)(i < 2 ? pool : own, 8, &most));
            assert(!used && !most);
            OK(D(cuDeviceSetMemPool)(0, own));
        }
        check();
    """
    check_bytes(run_main(tmp_path, body), 4)


LIE = r"""
import sys, msgpack
for record in msgpack.Unpacker(sys.stdin.buffer, strict_map_key=False, read_size=1):
    if record.get("kind") == "kernel" and "params" in record:
        {lie}
    sys.stdout.buffer.write(msgpack.packb(record))
    if record.get("kind") == "sync":
        sys.stdout.buffer.flush()
"""


@pytest.mark.parametrize(
    "lie",
    [
        "record['params'] = [dict(p, offset=8 * i, size=8) for i, p in enumerate(record['params'] * 400)]",
        "record['params'] = record['params'][:-1]",
        "record['params'][0]['size'] = 32000",
        "record['added'] *= 2",
    ],
)
def test_pipeline_with_wrong_answers(tmp_path, lie):
    stage = tmp_path / "lie.py"
    stage.write_text(LIE.replace("{lie}", lie))
    pipeline = f"gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch host | {sys.executable} '{stage}'"
    source = CLIENT + "int main(int argc, char **argv) { setup(argv[1]); run(); check(); return 0; }"
    trace = good(tmp_path, build(tmp_path, source), "--jit", pipeline)
    assert unprobed(trace) == {"the pipeline reported other parameters than the kernel has": 1}


def test_grid_in_clusters(tmp_path):
    """Buffers have space for every block. The simulated device has no clusters, so a stage reports them."""
    stage = tmp_path / "lie.py"
    stage.write_text(LIE.replace("{lie}", "record['cluster'] = [2, 3]"))
    pipeline = f"gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch host | {sys.executable} '{stage}'"
    source = CLIENT + "int main(int argc, char **argv) { setup(argv[1]); run(); check(); return 0; }"
    plain = good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes")
    trace = good(tmp_path, tmp_path / "client", "--jit", pipeline)
    ((one,), (other,)) = plain.of("probed"), trace.of("probed")
    assert other["grid"] == [2 * one["grid"][0], 3 * one["grid"][1], one["grid"][2]]
    assert trace.of("buffer")[0]["size"] == 6 * plain.of("buffer")[0]["size"]


@pytest.mark.parametrize(
    "pipeline",
    [
        "cat /dev/zero",
        "yes",
        "sleep 100",
        "head -c 300000000 /dev/zero",
        "exec 1>&-; cat",
        "kill -9 $$",
        "gpt-extract --ptx | head -c 40",
    ],
)
def test_pipeline_with_malformed_answers(tmp_path, pipeline):
    source = CLIENT + "int main(int argc, char **argv) { setup(argv[1]); run(); check(); return 0; }"
    trace = good(tmp_path, build(tmp_path, source), "--wait", "2", "--jit", pipeline)
    assert sum(unprobed(trace).values()) == 1


def test_modules_go_with_their_probes(tmp_path):
    """Our code is unloaded with the program's: no more is mapped than after the first modules."""
    source = (
        CLIENT
        + r"""
    static int count_maps(void) {
        FILE *file = fopen("/proc/self/maps", "r");
        int lines = 0;
        for (int c; (c = getc(file)) != EOF;)
            lines += c == '\n';
        fclose(file);
        return lines;
    }
    int main(int argc, char **argv) {
        int before = 0;
        for (int i = 0; i < 60; i++) {
            times = 0;
            setup(argv[1]);
            run(), check();
            OK(D(cuModuleUnload)(module));
            OK(D(cuMemFree_v2)(items));
            if (i == 10)
                before = count_maps();
        }
        assert(count_maps() < before + 50);
        return 0;
    }
    """
    )
    check_bytes(good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes"), 60)


def test_contexts_that_come_and_go(tmp_path):
    """Each context has its own buffers; their pinned memory is freed with the context."""
    source = (
        LARGE
        + r"""
    int main(int argc, char **argv) {
        void *context;
        begin();
        for (int i = 0; i < 4; i++) {
            times = 0;
            OK(D(cuCtxCreate_v2)(&context, 0, 0));
            FILE *file = fopen(argv[1], "r");
            assert(file && fread(text, 1, sizeof(text) - 1, file));
            fclose(file);
            OK(cuModuleLoadData(&module, text));
            OK(cuModuleGetFunction(&function, module, "scale"));
            OK(D(cuMemAlloc_v2)(&items, (size_t)sizeof(want)));
            OK(D(cuMemcpyHtoD_v2)(items, want, sizeof(want)));
            run(), large(), run(), check(), run();
            OK(D(cuCtxDestroy_v2)(context));
        }
        return 0;
    }
    """
    )
    trace = good(tmp_path, build(tmp_path, source), "-p", "gmem_bytes")
    assert lost(trace) == [None] * 16
    assert len(trace.of("probed")) == 16


@needs_cxx
@pytest.mark.parametrize("options", [("--wait", "0"), ("--calls", "none", "--gpu-time"), ("-p", "gmem_bytes")])
def test_a_program_of_the_cuda_runtime(tmp_path, options):
    """The program's kernels belong to libraries, which survive a reset, although their variables don't."""
    program = compile_cuda(tmp_path, PTX.with_name("cudart.cu"))
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    out = tmp_path / "t.mp"
    done = hooked.run(out, program, "faults", options=("-p", "block_sched", *options), env=env)
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    trace = hooked.Trace(out)
    added = 4  # nodes of a graph, three of them captured; no call launches them individually
    assert len(trace.of("probed")) + sum(unprobed(trace).values()) == sum(trace.launches.values()) + added
    assert unprobed(trace).get("it was not loaded with probes in this context yet", 0) <= 3  # after a reset
    assert set(lost(trace)) <= {None, "the device failed"}


def test_streams_that_launch_once(tmp_path):
    """A context's unused memory is given to other contexts when none is left."""
    body = r"""
        void *stream, *params[] = {&items, &added, &count};
        for (int i = 0; i < 200; i++) {
            OK(D(cuStreamCreate)(&stream, 1));
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
            usleep(500);
        }
        OK(D(cuCtxSynchronize)());
    """
    trace = run_main(tmp_path, body, "--max-memory", "20M")  # space for five slabs
    assert 5 < len(trace.of("probed")) == len(trace.of("buffer"))
    assert lost(trace).count(None) == len(trace.of("probed")) == 200 - sum(unprobed(trace).values())


def run_short_of_memory(tmp_path, body):
    """Make two launches with probes on a slow device of 100 MiB."""
    program = build(tmp_path, f"{CLIENT}\nint main(int argc, char **argv) {{ setup(argv[1]); {body} return 0; }}")
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "GPT_SIM_MEMORY": str(100 << 20)}
    env["GPT_SIM_DELAY"] = "100000"
    done = hooked.run(tmp_path / "t.mp", program, PTX, options=("-p", "gmem_bytes"), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(tmp_path / "t.mp")
    assert len(trace.of("probed")) == 2 and lost(trace) == [None, None]


def test_memory_that_the_program_needs(tmp_path):
    """Buffers of running launches are given back, too: an allocation succeeds as it does without probes."""
    body = r"""
        void *params[] = {&items, &added, &count};
        CUdeviceptr all;
        for (int i = 0; i < 2; i++) {
            OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
            OK(D(cuMemAlloc_v2)(&all, (size_t)99 << 20));
            IS(2, D(cuMemAlloc_v2)(&total, (size_t)99 << 20));
            OK(D(cuMemFree_v2)(all));
        }
    """
    run_short_of_memory(tmp_path, body)


def test_memory_that_code_needs(tmp_path):
    """Calls that need memory for something else, such as a module's variables, succeed."""
    body = r"""
        void *params[] = {&items, &added, &count}, *module, *library;
        const char *large = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .b8 all[103809024];\n";
        size_t size;
        CUdeviceptr all;
        OK(cuModuleLoadData(&module, large));
        OK(D(cuLibraryLoadData)(&library, large, NULL, NULL, 0, NULL, NULL, 0));
        OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        OK(D(cuModuleGetGlobal_v2)(&all, &size, module, "all"));
        IS(2, D(cuLibraryGetGlobal)(&all, &size, library, "all"));
        OK(D(cuModuleUnload)(module));
        OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        OK(D(cuLibraryGetGlobal)(&all, &size, library, "all"));
    """
    run_short_of_memory(tmp_path, body)
