"""gpt-hook -p: kernels and functions in several contexts, and their attributes."""

import sys

import pytest

from gpt.stream.reasons import TABLE, parse
from tests.runtime.probing import CLIENT, PTX, build, good, in_both_forms, probed, unprobed

pytestmark = pytest.mark.full

LIBRARY = (
    CLIENT
    + r"""
static void *library, *of_library;

static void load(const char *path) {
    FILE *file = fopen(path, "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    fclose(file);
    OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK(D(cuLibraryGetKernel)(&of_library, library, "scale"));
    function = of_library;
}

// In the current context, which has variables of its own.
static void enter(void) {
    times = 0;
    OK(D(cuMemAlloc_v2)(&items, (size_t)sizeof(want)));
    OK(D(cuMemcpyHtoD_v2)(items, want, sizeof(want)));
}

static unsigned sum(void) {
    unsigned found;
    size_t size;
    OK(D(cuCtxSynchronize)());
    OK(D(cuLibraryGetGlobal)(&total, &size, library, "total"));
    OK(D(cuMemcpyDtoH_v2)(&found, total, (size_t)4));
    return found;
}
"""
)

NOT_YET = "it was not loaded with probes in this context yet"


def run(folder, body, *options, before=LIBRARY):
    main = f"int main(int argc, char **argv) {{ begin(); load(argv[1]); enter(); {body} return 0; }}"
    return good(folder, build(folder, before + main), "-p", "gmem_bytes", *options)


def counts(trace):
    return len(trace.of("probed")), unprobed(trace)


def lost(trace):
    return {record.get("lost") and str(parse(record["lost"])) for record in trace.of("buffer")}


def test_a_kernel_in_two_contexts(tmp_path):
    """In the other context, the kernel is launched once without probes. Each context has its own variables."""
    body = r"""
        void *first, *second;
        OK(D(cuCtxGetCurrent)(&first));
        run(), run();
        assert(sum() == 800);
        OK(D(cuCtxCreate_v2)(&second, 0, 0));
        enter();
        run();
        assert(sum() == 400);
        run(), run();
        assert(sum() == 1200);
        OK(D(cuCtxSetCurrent)(first));
        enter();
        run();
        assert(sum() == 1200);
        OK(D(cuCtxDestroy_v2)(second));
        run();
        assert(sum() == 1600);
    """
    assert counts(run(tmp_path, body)) == (6, {NOT_YET: 1})


@pytest.mark.parametrize("code", ["sass"], indirect=True)
def test_machine_code_has_the_variables_of_one_context(tmp_path, code):
    """In another context the kernel runs without probes, and its variables have the right values."""
    body = r"""
        void *second;
        run();
        assert(sum() == 400);
        OK(D(cuCtxCreate_v2)(&second, 0, 0));
        enter();
        run();
        assert(sum() == 400);
        run();
        assert(sum() == 800);
    """
    assert counts(run(tmp_path, body)) == (1, {NOT_YET: 1, TABLE["variable_elsewhere"][0]: 1})


def test_a_function_of_a_kernel_in_two_contexts(tmp_path):
    """Getting the function there is a look-up."""
    body = r"""
        void *first, *second, *functions[2];
        OK(D(cuCtxGetCurrent)(&first));
        OK(D(cuKernelGetFunction)(&functions[0], of_library));
        OK(D(cuCtxCreate_v2)(&second, 0, 0));
        OK(D(cuKernelGetFunction)(&functions[1], of_library));
        assert(functions[0] != functions[1]);
        for (unsigned i = 0; i < 6; i++) {
            OK(D(cuCtxSetCurrent)(i % 2 ? second : first));
            enter();
            function = functions[i % 2];
            run();
            assert(sum() == 400u * (i / 2 + 1));
        }
        void *params[] = {&items, &added, &count};
        IS(400, cuLaunchKernel(functions[0], 6, 1, 1, 70, 1, 1, 0, NULL, params, NULL));
    """
    assert counts(run(tmp_path, body)) == (6, {})


@in_both_forms
@pytest.mark.parametrize("wait", ["30", "0"])
def test_function_obtained_before_its_kernel(tmp_path, wait):
    body = r"""
        OK(D(cuKernelGetFunction)(&function, of_library));
        for (unsigned i = 1; i <= 200; i++) {
            run();
            assert(sum() == 400 * i);
            usleep(i > 10 ? 10000 : 0);
        }
    """
    trace = run(tmp_path, body, "--wait", wait)
    count, reasons = counts(trace)
    assert count + sum(reasons.values()) == 200 and count > 0


def test_a_reset(tmp_path):
    """Kernels of libraries survive the reset, and get their probes again."""
    body = r"""
        OK(D(cuDevicePrimaryCtxRetain)(&module, 0));
        for (int i = 0; i < 4; i++) {
            run();
            assert(sum() == 400);
            run(), run();
            assert(sum() == 1200);
            OK(D(cuDevicePrimaryCtxReset_v2)(0));
            OK(D(cuDevicePrimaryCtxRetain)(&module, 0));
            OK(D(cuCtxSetCurrent)(module));
            enter();
        }
    """
    trace = run(tmp_path, body)
    assert counts(trace) == (9, {NOT_YET: 3})
    assert lost(trace) == {None}


def test_context_created_again(tmp_path):
    body = r"""
        for (int i = 0; i < 4; i++) {
            void *context;
            OK(D(cuCtxCreate_v2)(&context, 0, 0));
            enter();
            OK(D(cuKernelGetFunction)(&function, of_library));
            run(), run();
            assert(sum() == 800);
            OK(D(cuCtxDestroy_v2)(context));
        }
    """
    assert counts(run(tmp_path, body)) == (8, {})


@in_both_forms
def test_library_loaded_and_unloaded(tmp_path):
    body = r"""
        for (int i = 0; i < 4; i++) {
            run();
            OK(D(cuKernelGetFunction)(&function, of_library));
            run();
            assert(sum() == 800);
            OK(D(cuLibraryUnload)(library));
            load(argv[1]);
            enter();
        }
    """
    assert counts(run(tmp_path, body)) == (8, {})


@in_both_forms
@pytest.mark.parametrize(
    ("kernel", "variable"),
    [
        (
            "OK(D(cuLibraryGetKernel)(&function, library, name));",
            "OK(D(cuModuleGetGlobal_v2)(&factor, &size, inside, by));",
        ),
        (
            "OK(cuModuleGetFunction(&function, inside, name));",
            "OK(D(cuLibraryGetGlobal)(&factor, &size, library, by));",
        ),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_constants_of_a_library_and_of_its_module(tmp_path, kernel, variable, early):
    """Constants of a library are written through its module's handle and vice versa, before or after the kernel with
    probes is loaded.
    """
    body = rf"""
        void *inside;
        size_t size;
        unsigned seven = 7;
        const char *name = "scale", *by = "factor";
        OK(D(cuLibraryGetModule)(&inside, library));
        {variable if early else ""}
        {kernel}
        run();
        {variable}
        OK(D(cuMemcpyHtoD_v2)(factor, &seven, (size_t)4));
        run();
        unsigned found;
        OK(D(cuMemcpyDtoH_v2)(&found, items, sizeof(found)));
        assert(found == added * 7 + added); // from an item that was 0
        OK(D(cuLibraryUnload)(library));
    """
    assert counts(run(tmp_path, body)) == (2, {})


# The variable that a probe adds to shared memory.
SHARING = r"""
import re, sys, msgpack
for record in msgpack.Unpacker(sys.stdin.buffer, strict_map_key=False, read_size=1):
    if record.get("kind") == "ptx" and "original" in record:
        text = record["data"].replace(b".visible .entry", b".shared .b8 probe_room[1024];\n.visible .entry", 1)
        record["data"] = re.sub(rb"(\.entry [^{]*\{)", rb"\1 .reg .u32 %room; mov.u32 %room, probe_room;", text)
    sys.stdout.buffer.write(msgpack.packb(record))
    if record.get("kind") in ("sync", "end"):
        sys.stdout.buffer.flush()
"""


def set_dynamic(folder, body):
    """Run with a probe that takes 1 KB of shared memory."""
    stage = folder / "sharing.py"
    stage.write_text(SHARING)
    line = f"gpt-extract --ptx | gpt-ptx-probe -p block_sched | {sys.executable} '{stage}' | gpt-asm --arch $GPT_ARCH"
    before = (
        LIBRARY
        + r"""
    static void run_with(unsigned shared) {
        void *params[] = {&items, &added, &count};
        OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, shared, NULL, params, NULL));
        expect(3);
    }
    """
    )
    main = f"int main(int argc, char **argv) {{ int most; begin(); load(argv[1]); enter(); {body} return 0; }}"
    done, trace = probed(folder, build(folder, before + main), "--jit", line, arguments=(PTX,))
    assert (done.returncode, done.stderr) == (0, "")
    return counts(trace)


MOST = "OK(D(cuDeviceGetAttribute)(&most, 97, 0));"  # shared memory per block, with opt-in
UNFIT = "the program sets an attribute that it cannot have with probes"


def test_dynamic_shared_memory(tmp_path):
    """The size is set on the kernel or its function, before or after the probed kernel is loaded."""
    body = rf"""
        {MOST}
        run_with(0);
        OK(D(cuKernelSetAttribute)(8, most - 2048, of_library, 0));
        run_with(most - 2048);
        OK(D(cuKernelGetFunction)(&function, of_library));
        run_with(most - 2048);
        OK(D(cuFuncSetAttribute)(function, 8, most - 1024));
        run_with(most - 1024);
        OK(D(cuKernelSetCacheConfig)(of_library, 1, 0));
        OK(D(cuFuncSetCacheConfig)(function, 2));
        OK(D(cuFuncSetSharedMemConfig)(function, 1));
        run_with(most - 1024);
    """
    assert set_dynamic(tmp_path, body) == (5, {})


@pytest.mark.parametrize(
    "how", ["OK(D(cuKernelSetAttribute)(8, most, of_library, 0));", "OK(D(cuFuncSetAttribute)(function, 8, most));"]
)
def test_dynamic_shared_memory_that_there_is_not(tmp_path, how):
    body = rf"""
        {MOST}
        OK(D(cuKernelGetFunction)(&function, of_library));
        run_with(most / 2 - most / 2 + 100);
        {how}
        run_with(most);
        run_with(0);
    """
    assert set_dynamic(tmp_path, body) == (1, {UNFIT: 2})


@in_both_forms
def test_a_stream_of_another_context_with_the_handle_of_one_before(tmp_path):
    """The hook asks once for a stream's context, and again after a stream has ended."""
    body = r"""
        void *first, *second, *stream, *same, *params[] = {&items, &added, &count};
        OK(D(cuCtxGetCurrent)(&first));
        OK(D(cuCtxCreate_v2)(&second, 0, 0));
        OK(D(cuCtxSetCurrent)(first));
        OK(D(cuStreamCreate)(&stream, 1));
        for (int i = 0; i < 3; i++)
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuStreamDestroy_v2)(stream));
        OK(D(cuCtxSetCurrent)(second));
        OK(D(cuStreamCreate)(&same, 1));
        assert(same == stream);
        OK(D(cuCtxSetCurrent)(first));
        for (int i = 0; i < 2; i++)
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, same, params, NULL));
        OK(D(cuStreamSynchronize)(same));
    """
    trace = run(tmp_path, body)
    assert counts(trace) == (3, {"its stream belongs to another context than the current one": 2})
