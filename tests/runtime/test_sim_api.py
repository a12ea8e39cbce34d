"""The simulated device: the implemented part of the driver API."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from fnmatch import fnmatchcase

from tests import cuda
from tests.runtime import hooked
from tests.runtime.simulated import DRIVER, FUNCTIONS, ask


def constants(pattern: str) -> dict[str, int]:
    """Return cuda.h's values of these names."""
    text = (cuda.headers() / "cuda.h").read_text()
    return {name: int(value, 0) for name, value in re.findall(rf"\b({pattern})\s*=\s*(\w+)", text)}


def test_every_function_exists():
    code = r"""
    found, status = c.c_void_p(), c.c_int()
    for name, suffix, version in re.findall(r"^[XP]\((\w+), (\w*), (\d+)", open(sys.argv[2]).read(), re.M):
        if name != "cuGraphInstantiate": # by that name others are found too
            cu.cuGetProcAddress_v2(name.encode(), c.byref(found), int(version), c.c_uint64(0), c.byref(status))
            same = found.value == c.cast(cu[name + suffix], c.c_void_p).value
            cu.cuGetProcAddress_v2(name.encode(), c.byref(found), int(version) - 1, c.c_uint64(0), c.byref(status))
            answer([name + suffix, same, bool(found.value)])
    """
    answers, said = ask(code)
    assert [answer for answer in answers if answer[1:] != [True, bool(re.search(r"_v\d$", answer[0]))]] == [] == [*said]
    assert len(answers) > 560


def test_unsimulated_function_is_reported_once():
    answers, said = ask("for _ in range(3): answer(cu.cuTexObjectCreate(0, 0, 0, 0))")
    assert answers == [801, 801, 801]
    assert said == "libcuda.so.1: error: cuTexObjectCreate: not simulated: see gpt-sim(7)\n"


# Functions that work before cuInit.
NEEDS_NO_INIT = ["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2"]
NEEDS_NO_INIT += ["cuGetProcAddress_v2_ptsz", "cuGetExportTable", "cuInit", "cuProfilerInitialize"]

FORKS = r"""
import ctypes as c, os, re, sys
cu, libc = c.CDLL(sys.argv[1]), c.CDLL(None)
names = [m[1] + m[2] + v for m in re.finditer(r"^[XP]\((\w+), (\w*), \d+(?:, (_\w+))?", open(sys.argv[2]).read(), re.M)
         for v in ("", m[3] or "-") if v != "-"]
open_ = set(sys.argv[3].split())
answers = lambda: {cu[name]() for name in names if name not in open_ and not name.startswith("cuLogs")}
version, text, found = c.c_int(), c.c_char_p(), c.c_void_p()

def check_open(first):
    assert cu.cuInit(0) == first
    assert cu.cuDriverGetVersion(c.byref(version)) == 0 and version.value == 13000
    assert cu.cuGetErrorName(3, c.byref(text)) == 0 and text.value == b"CUDA_ERROR_NOT_INITIALIZED"
    assert cu.cuGetProcAddress_v2(b"cuMemAlloc", c.byref(found), 13000, c.c_uint64(0), None) == 0 and found.value

def child(fork, status):
    pid = fork()
    if not pid:
        try:
            check_open(status)
            os._exit(answers() != {3} if status else 0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, (fork, status)

forks = [os.fork, lambda: libc.syscall(57)]  # libc doesn't see the second
assert len(names) > 660 and answers() == {3}
for fork in forks:
    child(fork, 0)
check_open(0)
context = c.c_void_p()
assert cu.cuDevicePrimaryCtxRetain(c.byref(context), 0) == cu.cuCtxSetCurrent(context) == 0
for fork in forks:
    child(fork, 3)
assert cu.cuCtxSynchronize() == 0
pid = os.fork()
if not pid:  # a program that a child becomes has a driver of its own
    program = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).cuInit(0))"
    os.execv(sys.executable, [sys.executable, "-c", program, sys.argv[1]])
assert os.waitpid(pid, 0)[1] == 0
"""


def test_nothing_works_before_init_and_in_a_forked_child(tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    line = [sys.executable, "-W", "ignore", tmp_path / "forks.py", DRIVER, FUNCTIONS, " ".join(NEEDS_NO_INIT)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_multiprocessing_by_fork_is_refused():
    code = """
    import multiprocessing
    def work(queue):
        queue.put([cu.cuInit(0), cu.cuMemAlloc_v2(c.byref(c.c_uint64()), c.c_size_t(4)), cu.cuCtxSynchronize()])
    forking = multiprocessing.get_context("fork")
    queue = forking.Queue()
    process = forking.Process(target=work, args=(queue,))
    process.start()
    answer(queue.get(timeout=60))
    process.join()
    """
    assert ask(code)[0] == [[3, 3, 3]]


# Calls without a place for their result: an H200 returns 1, or crashes (the last four).
NULL_RESULTS = """
cuCtxGetApiVersion(context, N) cuCtxGetCurrent(N) cuCtxGetDevice(N) cuCtxGetDevice_v2(N, context) cuCtxGetFlags(N)
cuCtxGetId(context, N) cuCtxGetLimit(N, 0) cuDeviceGet(N, 0) cuDeviceGetAttribute(N, 10, 0) cuDeviceGetCount(N)
cuDeviceGetName(N, 20, 0) cuDeviceGetUuid(N, 0) cuDeviceGetUuid_v2(N, 0) cuDeviceTotalMem_v2(N, 0)
cuDeviceGetPCIBusId(N, 20, 0) cuDeviceGetDefaultMemPool(N, 0) cuDeviceGetGraphMemAttribute(0, 0, N)
cuDevicePrimaryCtxGetState(0, N, room) cuDevicePrimaryCtxGetState(0, room, N) cuDevicePrimaryCtxRetain(N, 0)
cuDriverGetVersion(N) cuEventCreate(N, 0) cuFuncGetAttribute(N, 0, function) cuFuncGetModule(N, function)
cuFuncGetName(N, function) cuFuncGetParamInfo(function, Z, N, N) cuFuncIsLoaded(N, function) cuGraphCreate(N, 0)
cuGraphAddDependencies(graph, N, nodes, ONE) cuGraphAddDependencies(graph, nodes, N, ONE)
cuGraphRemoveDependencies(graph, N, nodes, ONE) cuGraphRemoveDependencies_v2(graph, nodes, N, N, ONE)
cuGraphAddEmptyNode(N, graph, N, Z) cuGraphClone(N, graph) cuGraphInstantiateWithFlags(N, graph, Z)
cuGraphGetNodes(graph, room, N) cuGraphNodeGetType(nodes[0], N) cuKernelGetLibrary(N, kernel_)
cuKernelGetName(N, kernel_) cuKernelGetFunction(N, kernel_) cuLibraryGetKernelCount(N, library)
cuLibraryEnumerateKernels(N, 1, library) cuLibraryGetModule(N, library) cuLibraryGetKernel(N, library, "foo")
cuMemAlloc_v2(N, ONE) cuMemAllocAsync(N, ONE, N) cuMemAllocManaged(N, ONE, 1) cuMemAllocPitch_v2(N, room, ONE, ONE, 4)
cuMemAllocPitch_v2(room, N, ONE, ONE, 4) cuMemHostAlloc(N, ONE, 0) cuMemAddressReserve(N, ONE, Z, Z, Z)
cuModuleEnumerateFunctions(N, 1, module) cuModuleGetFunction(N, module, "foo") cuModuleGetFunctionCount(N, module)
cuModuleLoadData(N, PTX) cuOccupancyMaxActiveBlocksPerMultiprocessor(N, function, 32, Z)
cuPointerGetAttribute(N, 2, memory) cuPointerGetAttributes(1, N, rooms, memory)
cuPointerGetAttributes(1, kinds, N, memory) cuPointerGetAttributes(1, kinds, nulls, memory)
cuStreamCreate(N, 0) cuStreamGetCtx(N, N) cuStreamGetFlags(N, N)
cuStreamGetId(N, N) cuStreamGetPriority(N, N) cuStreamIsCapturing(N, N) cuUserObjectCreate(N, room, kinds, 1, 1)
cuGetErrorName(1, N) cuGetErrorString(1, N) cuModuleGetLoadingMode(N) cuThreadExchangeStreamCaptureMode(N)
"""
# Calls whose results are optional.
UNNEEDED_RESULTS = """
cuCtxGetStreamPriorityRange(N, N) cuMemGetInfo_v2(N, N) cuStreamGetCtx_v2(N, N, N) cuGraphExecUpdate_v2(exec, graph, N)
cuMemGetAddressRange_v2(N, N, memory)
"""


def test_null_results(play):
    checks = [
        f"    IS({status}, D({name}){arguments});"
        for status, calls in ((1, NULL_RESULTS), (0, UNNEEDED_RESULTS))
        for name, arguments in re.findall(r"(cu\w+)(\(.*?\))(?=\s)", calls)
    ]
    source = r"""
    #define N (void *)0
    #define Z (size_t)0
    #define ONE (size_t)1
    int main(void) {
        begin();
        void *context, *module, *function, *library, *kernel_, *graph, *exec, *nodes[2], *room[20];
        void *rooms[] = {room}, *nulls[] = {0};
        int kinds[] = {2};
        uint64_t memory;
        OK(D(cuCtxGetCurrent)(&context));
        OK(cuModuleLoadData(&module, PTX));
        OK(cuModuleGetFunction(&function, module, "foo"));
        OK(D(cuLibraryLoadData)(&library, PTX, N, N, 0, N, N, 0));
        OK(D(cuLibraryGetKernel)(&kernel_, library, "foo"));
        OK(D(cuGraphCreate)(&graph, 0));
        OK(D(cuGraphAddEmptyNode)(nodes, graph, N, Z));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        OK(D(cuMemAlloc_v2)(&memory, ONE));
    """
    play("\n".join([source, *checks, "}"]))


def test_the_man_page_lists_what_is_not_simulated():
    page = (hooked.ROOT / "man" / "man7" / "gpt-sim.7").read_text()
    section = page[page.index(".Sh DRIVER API") : page.index(".Pp", page.index(".Sh DRIVER API"))]
    patterns = [word for line in re.findall(r"^\.Li (cu.*)", section, re.M) for word in line.strip(" ,").split()]
    patterns = [pattern for pattern in patterns if pattern not in (".", "cuGetProcAddress")]
    symbols = subprocess.run(["objdump", "-t", DRIVER], capture_output=True, text=True, check=True).stdout
    places = re.findall(r"\s(\S+)\s+[0-9a-f]{16}\s+sim_(cu\w+)", symbols)
    kinds = {name: "W" if place == "refused" else "T" for place, name in places}
    listed, used = {}, set()
    for name in kinds:
        base = re.sub(r"(_v\d)?(_pt[ds][sz])?$", "", name)
        found = [pattern for pattern in patterns if fnmatchcase(base, pattern)]
        listed[name] = bool(found) or (name == base and kinds.get(f"{base}_v2") == "T" and kinds[name] == "W")
        used |= set(found)
    assert {name for name in kinds if listed[name] != (kinds[name] == "W")} == set()
    assert set(patterns) == used


def test_names_and_meanings_of_all_errors():
    code = """
    text = c.c_char_p()
    for status in range(1100):
        for ask in (cu.cuGetErrorName, cu.cuGetErrorString):
            if ask(status, c.byref(text)) == 0:
                answer([status, text.value.decode()])
            else:
                assert text.value is None
    """
    answers, _ = ask(code)
    names = {text: status for status, text in answers[::2]}
    assert names == constants("CUDA_ERROR_\\w+|CUDA_SUCCESS")
    (library,) = cuda.headers().parent.glob("lib*/libcudart.so.13")
    runtime = ctypes.CDLL(str(library))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    for status, text in answers[1::2]:
        if status not in (202, 916):  # the runtime doesn't have these codes
            assert text == runtime.cudaGetErrorString(status).decode()


def test_attributes():
    everything = constants("CU_DEVICE_ATTRIBUTE_\\w+")
    code = """
    value = c.c_int()
    for attribute in range(200):
        status = cu.cuDeviceGetAttribute(c.byref(value), attribute, 0)
        answer(None if status else value.value)
    properties = (c.c_int * 14)()
    assert cu.cuDeviceGetProperties(properties, 0) == 0
    answer(list(properties))
    """
    there = set(everything.values())
    for arch, expected in {
        "sm_75": (7, 5, 1024, 16, 65536, 65536, 0),
        "8.6": (8, 6, 1536, 16, 102400, 101376, 1024),
        "sm_90": (9, 0, 2048, 32, 233472, 232448, 1024),
        "sm_100": (10, 0, 2048, 32, 233472, 232448, 1024),
        "sm_121": (12, 1, 1536, 24, 102400, 101376, 1024),
    }.items():
        *values, properties = ask(code, GPT_SIM_ARCH=arch)[0]
        assert [i for i, value in enumerate(values) if value is not None] == sorted(there)
        assert tuple(values[i] for i in (75, 76, 39, 106, 81, 97, 111)) == expected
        assert values[10] == 32 and values[12] == values[82] == 65536 and values[41] == values[115] == 1
        assert properties[:7] == values[1:8] and properties[7:12] == values[8:13]


def test_settings_of_contexts_and_peers(play):
    source = r"""
    int main(void) {
        begin();
        size_t size;
        int number, device, least, greatest;
        unsigned flags;
        char id[16];
        void *context, *function = kernel("foo"), *stream;
        OK(D(cuCtxGetLimit)(&size, 0));
        assert(size == 1024);
        OK(D(cuCtxSetLimit)(0, (size_t)4096));
        OK(D(cuCtxGetLimit)(&size, 0));
        assert(size == 4096);
        IS(215, D(cuCtxGetLimit)(&size, 3));
        IS(1, D(cuCtxGetLimit)(&size, 99));
        OK(D(cuCtxSetCacheConfig)(2));
        OK(D(cuCtxGetCacheConfig)(&number));
        assert(number == 2);
        OK(D(cuFuncSetCacheConfig)(function, 1));
        IS(1, D(cuFuncSetCacheConfig)(function, 4));
        OK(D(cuFuncIsLoaded)(&number, function));
        assert(number == 1);
        OK(D(cuDevicePrimaryCtxSetFlags_v2)(0, 4));
        OK(D(cuCtxGetFlags)(&flags));
        assert(flags == 4);
        OK(D(cuCtxCreate_v2)(&context, 1, 0));
        OK(D(cuCtxGetFlags)(&flags));
        assert(flags == 1);
        OK(D(cuCtxGetLimit)(&size, 0)); // another context's limit
        assert(size == 1024);
        OK(D(cuCtxSynchronize_v2)(context));
        OK(D(cuDeviceCanAccessPeer)(&number, 0, 0));
        assert(!number);
        IS(217, D(cuCtxEnablePeerAccess)(context, 0));
        IS(705, D(cuCtxDisablePeerAccess)(context));
        OK(D(cuCtxDestroy_v2)(context));
        OK(D(cuDeviceGetPCIBusId)(id, 16, 0));
        OK(D(cuDeviceGetByPCIBusId)(&device, id));
        IS(101, D(cuDeviceGetByPCIBusId)(&device, "0000:17:00.0"));
        OK(D(cuCtxGetStreamPriorityRange)(&least, &greatest));
        OK(D(cuStreamCreateWithPriority)(&stream, 1, -9));
        OK(D(cuStreamGetPriority)(stream, &number));
        assert(least == 0 && greatest == -5 && number == greatest);
        OK(D(cuProfilerStart)());
    }
    """
    play(source)


def test_occupancy(play):
    source = r"""
    static size_t shared_of(int threads) {
        int device; // no lock is held
        OK(D(cuCtxGetDevice)(&device));
        return threads * 64;
    }
    int main(void) {
        begin();
        void *function = kernel("foo");
        int count, grid, block;
        size_t size;
        struct { int threads, shared, blocks; } cases[] = {
            {1024, 0, 2}, {256, 0, 8}, {33, 0, 32}, {32, 0, 32}, {1, 0, 32}, {256, 48 << 10, 4}, {96, 10000, 20}};
        for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
            size = cases[i].shared;
            OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&count, function, cases[i].threads, size));
            if (count != cases[i].blocks)
                printf("%d: %d\n", i, count), abort();
        }
        OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&count, function, 2048, (size_t)0));
        assert(count == 0);
        OK(D(cuOccupancyMaxPotentialBlockSize)(&grid, &block, function, 0, (size_t)0, 0));
        assert(block == 1024 && grid >= 2 && grid % 2 == 0);
        OK(D(cuOccupancyMaxPotentialBlockSize)(&grid, &block, function, shared_of, (size_t)0, 0));
        assert(block == 512); // with 1024 threads none fits, with 768 two do, 1536 threads; with 512 four
        OK(D(cuOccupancyAvailableDynamicSMemPerBlock)(&size, function, 2, 256));
        assert(size == (114 << 10) - 1024);
    }
    """
    play(source)


def test_ptx_that_is_linked(play):
    source = r"""
    #include <fcntl.h>
    #define HEAD(version, target) ".version " version "\n.target " target "\n.address_size 64\n"
    static const char one[] = HEAD("7.0", "sm_70")
        ".extern .func (.param .u32 r) twice(.param .u32 a);\n.extern .global .u32 shared_by_all;\n"
        ".global .u32 own = 1;\n.weak .func common() { ret; }\n"
        ".visible .entry main1(.param .u64 p) { .reg .u32 %r; ld.global.u32 %r, [own]; call common; ret; }\n";
    static const char two[] = HEAD("8.3", "sm_80, debug") "// a comment, .extern\n"
        ".global .u32 own = 2;\n.visible .global .u32 shared_by_all = 3;\n.weak .func common() { exit; }\n"
        ".visible .func (.param .u32 r) twice(.param .u32 a) { .reg .u32 %r; ld.global.u32 %r, [own]; ret; }\n"
        ".visible .entry main2() { ret; }\n";
    int main(int count, char **paths) {
        begin();
        void *link, *image, *module, *function;
        size_t size;
        uint64_t memory;
        char log[64] = "?";
        int options[] = {5, 6};
        void *values[] = {log, (void *)sizeof(log)};
        OK(D(cuLinkCreate_v2)(2, options, values, &link));
        OK(D(cuLinkAddData_v2)(link, 1, one, sizeof(one), "one", 0, 0, 0));
        OK(D(cuLinkAddData_v2)(link, 1, two, sizeof(two) - 1, "two", 0, 0, 0));
        OK(D(cuLinkComplete)(link, &image, &size));
        fputs(image, stdout);
        assert(strlen(image) + 1 == size && !*log && !values[1]);
        OK(cuModuleLoadData(&module, image));
        OK(D(cuLinkDestroy)(link));
        IS(400, D(cuLinkDestroy)(link));
        OK(cuModuleGetFunction(&function, module, "main1"));
        OK(cuModuleGetFunction(&function, module, "main2"));
        OK(D(cuModuleGetGlobal_v2)(&memory, &size, module, "shared_by_all"));
        assert(size == 4);
        int errors = dup(2);
        dup2(open("/dev/null", O_WRONLY), 2);
        values[1] = (void *)sizeof(log);
        OK(D(cuLinkCreate_v2)(2, options, values, &link));
        IS(200, D(cuLinkAddData_v2)(link, 0, "\177ELF....", (size_t)8, "none", 0, 0, 0));
        assert(strstr(log, "only PTX can be linked") && (size_t)values[1] == strlen(log));
        OK(D(cuLinkAddData_v2)(link, 1, two, sizeof(two), "two", 0, 0, 0));
        OK(D(cuLinkAddData_v2)(link, 1, two, sizeof(two), "two", 0, 0, 0));
        IS(218, D(cuLinkComplete)(link, &image, &size));
        assert(!strcmp(log, "two modules define 'shared_by_all'"));
        dup2(errors, 2);
        IS(301, D(cuLinkAddFile_v2)(link, 1, "/none", 0, 0, 0));
    }
    """
    text = play(source)
    assert text.count(".version") == 1 and ".version 8.3\n.target sm_80, debug\n" in text
    twice = ".visible .func (.param .u32 r) twice(.param .u32 a)"
    assert text.count(twice) == 2 and text.index(f"{twice};") < text.index("main1") < text.index(f"{twice} {{")
    assert text.index(".extern .global .u32 shared_by_all;") < text.index(".visible .global .u32 shared_by_all = 3;")
    assert text.count("shared_by_all") == 2 and text.count(".weak") == 1
    assert "own$0 = 1" in text and "own$1 = 2" in text and "[own$0]" in text and "[own$1]" in text


# What host functions and callbacks may call, with the status codes of an H200 (driver 580.159).
IN_CALLBACKS = """
800 cuMemAlloc_v2(room, ONE) 800 cuCtxSynchronize() 800 cuCtxGetCurrent(room) 800 cuCtxSetCurrent(context)
800 cuDeviceGetAttribute(room, 16, 0) 800 cuPointerGetAttribute(room, 2, memory) 800 cuDeviceGetCount(room)
800 cuGraphCreate(room, 0) 800 cuDevicePrimaryCtxRetain(room, 0) 800 cuCtxGetLimit(room, 0) 800 cuCtxGetDevice(room)
800 cuMemAddressReserve(room, Z(2 << 20), Z, Z, Z) 800 cuDeviceGetName(room, 60, 0)
800 cuDeviceGetDefaultMemPool(room, 0) 0 cuEventQuery(event) 0 cuDriverGetVersion(room)
0 cuMemsetD8Async(memory, 0, ONE, stream) 600 cuStreamQuery(stream) 0 cuInit(0)
0 cuLaunchHostFunc(stream, nothing, N) 0 cuThreadExchangeStreamCaptureMode(mode) 0 cuGetErrorName(1, room)
0 cuGetProcAddress_v2(b"cuInit", room, 12000, c.c_uint64(0), N) 0 cuEventDestroy_v2(event)
"""


def test_callbacks_may_call_what_an_h200_lets_them():
    code = """
    context, stream, event, memory = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64()
    room, mode, N, ONE, Z = (c.c_uint64 * 16)(), c.byref(c.c_int(0)), None, c.c_size_t(4), c.c_size_t
    cu.cuDevicePrimaryCtxRetain(c.byref(context), 0), cu.cuCtxSetCurrent(context)
    cu.cuStreamCreate(c.byref(stream), 1), cu.cuMemAlloc_v2(c.byref(memory), Z(64))
    nothing = c.CFUNCTYPE(None, c.c_void_p)(lambda _: None)
    def body(*_):
        for status, call in re.findall(r"(\\d+) (cu\\w+\\(.*?\\))(?=\\s+\\d+ cu|\\s*$)", WANTED, re.S):
            got = eval("cu." + re.sub(r"\\bZ(?=[,)])", "Z(0)", call))
            if got != int(status):
                answer(f"{call}: {got}")
        answer("done")
    host, callback = c.CFUNCTYPE(None, c.c_void_p)(body), c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_void_p)(body)
    for add in (lambda: cu.cuLaunchHostFunc(stream, host, N), lambda: cu.cuStreamAddCallback(stream, callback, N, 0)):
        answer(cu.cuEventCreate(c.byref(event), 0))
        answer(add() or cu.cuStreamSynchronize(stream))
    answer(cu.cuMemAlloc_v2(room, ONE)), cu.cuCtxSynchronize()  # this thread may
    """
    code = code.replace("WANTED", repr(IN_CALLBACKS))
    assert ask(code)[0] == [0, "done", 0, 0, "done", 0, 0]
