"""The simulated device compiles PTX through a pipeline of stages, and caches the results."""

import os
import struct

import pytest

from tests import cuda
from tests.runtime import hooked
from tests.tiers import full

SOURCE = """
extern "C" {
__device__ int table[3] = {1, 2, 3}, *second = table + 1;
__constant__ int weights[2] = {5, 6};
__global__ void reverse(int *to) {
    __shared__ int lane[64];
    lane[threadIdx.x] = weights[1] + *second + threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = lane[63 - threadIdx.x];
    if (threadIdx.x > 61)
        printf("%d of %s: %5.2f%%\\n", threadIdx.x, "it", 2.5);
}
__global__ void other(int *to) { *to = 1; }
}
"""


@pytest.mark.parametrize("step", [3, full(1)])
def test_ptx_runs_and_its_code_is_kept(sim_play, tmp_path, step):
    ptx = cuda.nvrtc_compile(SOURCE, "compute_80")
    (tmp_path / "code.ptx").write_bytes(ptx + b"\0")
    (tmp_path / "code.fatbin").write_bytes(cuda.fatbin([("sm_80", "ptx", ptx)], "zstd"))
    script = """
    import os, signal
    ended = []
    signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
    for path in sys.argv[1:]:
        module = load(path)
        memory, size = Memory(64), c_int()
        ok(cu.cuFuncGetAttribute(byref(size), 1, function(module, "reverse")))
        assert size.value == 256
        ok(cu.cuFuncGetAttribute(byref(size), 2, function(module, "reverse")))
        assert size.value == 8  # size of weights
        for _ in range(2):
            ok(launch(function(module, "reverse"), 1, 64, memory))
            assert memory.read() == [8 + 63 - i for i in range(64)]
    try:
        os.wait()
    except ChildProcessError:
        assert not ended
    """
    files = [tmp_path / "code.ptx", tmp_path / "code.fatbin"]
    done = sim_play(script, *files)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "62 of it:  2.50%\n63 of it:  2.50%\n" * 4
    kept = tmp_path / "cache" / "gpt" / "sim"
    names = sorted(path.name for path in kept.iterdir())
    assert len(names) == 6  # two texts with one outline each; one was checked, and one was compressed
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept.iterdir())
    found = sim_play(script, *files, PATH="/nowhere", CC=os.environ.get("CC", ""))  # nothing can be compiled
    assert (found.returncode, found.stdout) == (0, done.stdout), found.stderr
    for torn in map(kept.joinpath, names[::step]):
        whole = torn.read_bytes()
        torn.write_bytes(whole[:-1])
        assert sim_play(script, *files).returncode == 0
        assert len(torn.read_bytes()) == len(whole)  # built again
    assert sorted(path.name for path in kept.iterdir()) == names


@pytest.mark.full
def test_kernels_whose_long_names_differ_in_the_last_letter(sim_play, tmp_path):
    head = ".version 7.0\n.target sm_70\n.address_size 64\n"
    body = "(.param .u64 to) {{ .reg .b64 %d; ld.param.u64 %d, [to]; st.global.u32 [%d], {}; ret; }}\n"
    names = [f"k{'x' * 5000}{end}" for end in "ab"]
    kernels = (f".visible .entry {name}{body.format(value)}" for value, name in enumerate(names, 1))
    (tmp_path / "code.ptx").write_text(head + "".join(kernels) + "\0")
    script = """
    module, memory = load(sys.argv[1]), Memory(1)
    for value, name in enumerate(sys.argv[2:], 1):
        ok(launch(function(module, name), 1, 1, memory))
        assert memory.read() == [value]
    """
    for _ in range(2):  # made, and kept
        done = sim_play(script, tmp_path / "code.ptx", *names)
        assert (done.returncode, done.stderr) == (0, "")


def test_cubins_are_refused(sim_play, tmp_path):
    (tmp_path / "code.cubin").write_bytes(cuda.nvrtc_compile(SOURCE, "sm_90"))
    script = """
    for _ in range(2):  # the message comes once
        assert cu.cuModuleLoadData(byref(c_void_p()), Path(sys.argv[1]).read_bytes()) == 209
    """
    done = sim_play(script, tmp_path / "code.cubin")
    assert done.returncode == 0 and done.stderr == (
        "libcuda.so.1: error: only code for sm_90; --device sim runs PTX (nvcc: -arch=compute_90; "
        "numba-cuda: pip uninstall nvidia-nvjitlink; others: see gpt-sim(7))\n"
    )


def test_missing_code_in_an_image_is_reported(sim_play, tmp_path):
    """The fatbins have CUDA's format: an element has a kind, version, sizes and an architecture."""
    script = """
    import struct

    def fatbin(*elements):
        made = b""
        for kind, arch, flags in elements:
            payload = b".version 7.0\\n.target sm_100\\n.address_size 64\\n".ljust(64, b"\\0")
            head = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(payload), 0, 0, 7, 0, arch, 64, 0, flags, 0, 0)
            made += head[:64].ljust(64, b"\\0") + payload
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(made)) + made

    def is_refused(status, image):
        assert cu.cuModuleLoadData(byref(c_void_p()), image + b"\\0" * 64) == status

    is_refused(209, fatbin((2, 80, 1), (2, 90, 1), (2, 80, 1)))
    is_refused(209, fatbin((2, 80, 1), (1, 100, 1)))
    is_refused(200, b"hello")
    """
    done = sim_play(script)
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("libcuda.so.1: error: ") for line in done.stderr.splitlines()]
    assert said[0].startswith("only code for sm_80, sm_90; --device sim runs PTX (")
    assert said[1] == "PTX for sm_100 only; the device is sm_90: set GPT_SIM_ARCH, see gpt-sim(7)"
    assert said[2].startswith("an image that is neither PTX nor a fatbin") and len(said) == 3


@pytest.mark.full
def test_kernels_that_launch_kernels_are_refused_by_name(sim_play, tmp_path):
    head = ".version 9.5\n.target sm_70\n.address_size 64\n"
    call = "{ .reg .b64 %p; .reg .b32 %r; mov.u64 %p, inner; ret; }\n"
    runtime = ".extern .func (.param .b64 z) cudaGetParameterBufferV2(.param .b64 of);\n"
    ask = "{ .param .b64 a; .param .b64 b; call (b), cudaGetParameterBufferV2, (a); ret; }\n"
    texts = [
        head + ".visible .entry inner() { ret; }\n.visible .entry outer()\n" + call,
        head + runtime + ".visible .entry outer()\n" + ask,
    ]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.ptx").write_text(text)
    script = """
    for path in sys.argv[1:]:
        assert cu.cuModuleLoadData(byref(c_void_p()), Path(path).read_bytes() + b"\\0") == 218
    """
    done = sim_play(script, *(tmp_path / f"{number}.ptx" for number in range(2)))
    assert done.returncode == 0, done.stderr
    assert "kernel 'inner' for cudaLaunchDevice: kernels cannot launch kernels here, see gpt-sim(7)" in done.stderr
    assert "function 'cudaGetParameterBufferV2' of CUDA's device runtime is missing here: see gpt-sim(7)" in done.stderr


def test_the_hook_watches_what_runs(sim_play, tmp_path):
    (tmp_path / "code.ptx").write_bytes(cuda.nvrtc_compile(SOURCE, "compute_80") + b"\0")
    script = """
    memory = Memory(1)
    ok(launch(function(load(sys.argv[1]), "other"), 1, 1, memory))
    assert memory.read() == [1]
    """
    trace = tmp_path / "t.mp"
    done = sim_play(script, tmp_path / "code.ptx", command=hooked.command("run", "-o", trace, "--device", "sim", "--"))
    assert (done.returncode, done.stderr) == (0, "")
    assert hooked.Trace(trace).launches == {"other": 1}
    assert not list(tmp_path.glob("t.mp.*"))  # the stages weren't traced


@pytest.mark.full
def test_relocatable_code_is_linked(sim_play, tmp_path):
    """Compressed fatbins, as nvcc makes them, are linked in the wrapper of nvlink's cubins, and by cuLink."""
    head = ".version 7.0\n.target sm_70\n.address_size 64\n"
    texts = [
        ".extern .global .b32 value;\n.extern .func deeper(.reg .b32 n);\n.visible .global .b32 depth;\n"
        ".visible .func deep(.reg .b32 n) { .reg .pred %p; setp.eq.u32 %p, n, 0; @%p ret;\n"
        ".reg .b32 %r; red.global.add.u32 [depth], 1; sub.u32 %r, n, 1; call deeper, (%r); ret; }\n"
        ".visible .entry get(.param .u64 to) { .reg .b64 %d; .reg .b32 %r, %s;\n"
        "ld.param.u64 %d, [to]; call deep, (6); ld.global.u32 %r, [value]; ld.global.u32 %s, [depth];\n"
        "mad.lo.u32 %r, %s, 100, %r; st.global.u32 [%d], %r; ret; }\n",
        ".extern .func deep(.reg .b32 n);\n.visible .global .b32 value = 7;\n"
        ".visible .func deeper(.reg .b32 n) { .reg .b32 %r; sub.u32 %r, n, 1; call deep, (%r); ret; }\n",
    ]
    files = [tmp_path / name for name in ("linked", "one", "two")]
    files[0].write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0))  # no code for the device
    for file, text in zip(files[1:], texts, strict=True):
        file.write_bytes(cuda.fatbin([("sm_70", "ptx", (head + text).encode())], "zstd", ["-c"]))
    script = """
    class Wrapper(Structure):
        _fields_ = [("magic", c_uint32), ("version", c_uint32), ("data", c_void_p), ("more", c_void_p)]

    def check(module):
        memory = Memory(1)
        ok(launch(function(module, "get"), 1, 1, memory))
        assert memory.read() == [307]

    linked, *parts = [create_string_buffer(Path(path).read_bytes()) for path in sys.argv[1:]]
    every = (c_void_p * 3)(*map(addressof, parts), None)
    wrapper = Wrapper(0x466243B1, 2, addressof(linked), addressof(every))
    library, module, link, image = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    assert cu.cuModuleLoadData(byref(module), byref(wrapper)) == 200  # it is for libraries
    ok(cu.cuLibraryLoadData(byref(library), byref(wrapper), None, None, 0, None, None, 0))
    ok(cu.cuLibraryGetModule(byref(module), library))
    check(module)
    ok(cu.cuLinkCreate_v2(0, None, None, byref(link)))
    for part in parts:
        ok(cu.cuLinkAddData_v2(link, 4, part, c_size_t(len(part)), None, 0, None, None))
    ok(cu.cuLinkComplete(link, byref(image), None))
    ok(cu.cuModuleLoadData(byref(module), image))
    check(module)
    """
    done = sim_play(script, *files)
    assert (done.returncode, done.stderr) == (0, "")


CLASSES = """
struct Shape { virtual __device__ int area() = 0; };
struct Square : Shape { int a; __device__ Square(int a) : a(a) {} __device__ int area() override { return a * a; } };
struct Strip : Shape {
    int a;
    __device__ Strip(int a) : a(a) {}
    __device__ int area() override { __shared__ int lane[40]; lane[threadIdx.x] = a; return 2 * lane[threadIdx.x]; }
};
__device__ Shape *shapes[32];
extern "C" __global__ void make() {
    shapes[threadIdx.x] = threadIdx.x % 2 ? (Shape *)new Square(threadIdx.x) : new Strip(threadIdx.x);
}
extern "C" __global__ void use(int *areas) { areas[threadIdx.x] = shapes[threadIdx.x]->area(); }
"""


@pytest.mark.full
def test_functions_that_another_kernel_stored_are_called(sim_play, tmp_path):
    """`use` doesn't name any of them."""
    (tmp_path / "code.ptx").write_bytes(cuda.nvrtc_compile(CLASSES, "compute_80") + b"\0")
    script = """
    module, areas, size = load(sys.argv[1]), Memory(32), c_int()
    for _ in range(2):
        ok(cu.cuFuncGetAttribute(byref(size), 1, function(module, "use")))
        assert size.value == 160
        ok(launch(function(module, "make"), 1, 32))
        ok(launch(function(module, "use"), 1, 32, areas))
    assert areas.read() == [n * n if n % 2 else 2 * n for n in range(32)]
    """
    done = sim_play(script, tmp_path / "code.ptx")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.full
def test_clusters_of_several_blocks_are_refused(sim_play, tmp_path):
    (tmp_path / "code.ptx").write_bytes(cuda.nvrtc_compile(CLASSES, "compute_80") + b"\0")
    script = """
    class Attribute(Structure):
        _fields_ = [("id", c_uint32), ("pad", c_uint32), ("cluster", c_uint32 * 16)]

    class Config(Structure):
        _fields_ = [("sizes", c_uint32 * 7), ("stream", c_void_p), ("attributes", c_void_p), ("count", c_uint32)]

    make = function(load(sys.argv[1]), "make")
    for x, status in ((1, 0), (2, 912)):
        attribute = Attribute(4, 0, (x, 1, 1))
        config = Config((2, 1, 1, 32, 1, 1, 0), None, addressof(attribute), 1)
        assert cu.cuLaunchKernelEx(byref(config), make, None, None) == status
    """
    done = sim_play(script, tmp_path / "code.ptx")
    fact = "cluster of 2 blocks: only clusters of one block are simulated, see gpt-sim(7)"
    assert (done.returncode, done.stderr) == (0, f"libcuda.so.1: error: {fact}\n")


def test_grids_synchronize_by_the_device_runtime(sim_play, tmp_path):
    """In each round, every block adds one, and sees the sum of all other blocks from the previous round."""
    text = """.version 7.0\n.target sm_70\n.address_size 64
    .extern .func (.param .b64 z) cudaCGGetIntrinsicHandle(.param .b32 scope);
    .extern .func (.param .b32 z) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
    .visible .entry rounds(.param .u64 to) {
        .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %d<3>; .param .b32 scope, flags, status; .param .b64 handle;
        ld.param.u64 %d0, [to];
        st.param.b32 [scope], 1; call (handle), cudaCGGetIntrinsicHandle, (scope); st.param.b32 [flags], 0;
        mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, %nctaid.x;
    AGAIN:
        @!%p0 red.global.add.u32 [%d0], 1;
        call (status), cudaCGSynchronize, (handle, flags);
        add.u32 %r1, %r1, 1; ld.volatile.global.u32 %r3, [%d0]; mul.lo.u32 %r4, %r1, %r2;
        setp.ne.u32 %p1, %r3, %r4; @%p1 red.global.add.u32 [%d0+4], 1;
        call (status), cudaCGSynchronize, (handle, flags);
        setp.lt.u32 %p2, %r1, 5; @%p2 bra AGAIN;
        ret;
    }"""
    (tmp_path / "code.ptx").write_text(text + "\0")
    script = """
    state, image, memory = c_void_p(), c_void_p(), Memory(2)
    ok(cu.cuLinkCreate_v2(0, None, None, byref(state)))
    for kind, data in (1, Path(sys.argv[1]).read_bytes()), (4, b"!<arch>\\n" + bytes(60)):
        ok(cu.cuLinkAddData_v2(state, kind, data, c_size_t(len(data)), None, 0, None, None))
    ok(cu.cuLinkComplete(state, byref(image), None))
    ok(launch(function(load(string_at(image)), "rounds"), 6, 64, memory, cooperative=True))
    assert memory.read() == [30, 0]
    """
    done = sim_play(script, tmp_path / "code.ptx")
    assert (done.returncode, done.stderr) == (0, "")
