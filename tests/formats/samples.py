"""The files that tests of formats, patch and stages read and rewrite, each built once per session.

`@sample` marks a function that builds a file; the fixture `sample` (tests/conftest.py) builds it on request. The host
code is real, so tests can load and call a patched library.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from tests import cuda
from tests.formats import forge

ONE = """
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __noinline__ float help(float x) { return x * table[1]; }
__global__ void one(float *x) { x[threadIdx.x] = help(x[threadIdx.x]); }
__global__ void two(float *x) { x[threadIdx.x] += table[0]; }
"""
MANY = """
template <int N> __global__ void many(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < N; ++k) if (i < n) x[i] = x[i] / (k + 2.0f) + sinf(x[i]);
}
""" + "".join(f"template __global__ void many<{n}>(float *, int);\n" for n in range(1, 9))
# Code that no compression shrinks: constants without a pattern.
BULKY = (
    "__constant__ int words[] = {"
    + ",".join(str(n * n * 2654435761 % 4294967291) for n in range(1, 8000))
    + """};
extern "C" __global__ void bulky(int *x) { *x = words[*x]; }
"""
)
VARIABLES = 'extern "C" { __device__ int counter; __constant__ float scale[4] = {1, 2, 3, 4}; }'
CALLER = 'extern "C" __device__ int callee(int); extern "C" __global__ void caller(int *x) { *x = callee(*x); }'
CALLEE = 'extern "C" __device__ int callee(int x) { return x * x + 1; }'
# Kernels linked with each other: calls, functions whose address is taken, a function that calls another.
USERS = """
typedef int (*fn)(int);
extern "C" __device__ int callee(int); extern "C" __device__ int other(int);
extern "C" __device__ int pointed(int); extern "C" __device__ int lonely(int);
extern "C" __global__ void direct(int *x) { *x = callee(*x); }
extern "C" __global__ void pointer(int *x, int n) { fn f = n ? pointed : other; *x = f(*x); }
extern "C" __global__ void alone(int *x) { *x = lonely(*x); }
extern "C" __global__ void plain(int *x) { *x = 3; }
"""
FUNCTIONS = """
extern "C" __device__ __noinline__ int deep(int x) { return x * 77; }
extern "C" __device__ int callee(int x) { return deep(x) * x + 1; }
extern "C" __device__ int other(int x) { return x + 5; }
extern "C" __device__ int pointed(int x) { return x * 3; }
extern "C" __device__ int lonely(int x) { return x * 9; }
"""
TABLE = """
typedef int (*fn)(int);
__device__ __noinline__ int first(int x) { return x + 1; }
__device__ __noinline__ int second(int x) { return x * 7; }
__device__ fn table[2] = {first, second};
extern "C" __global__ void indirect(int *x, int n) { *x = table[n](*x); }
extern "C" __global__ void apart(int *x) { *x = 9; }
"""

ARCHS = {  # targets of each source
    ONE: ("sm_75", "sm_80", "sm_90", "compute_90"),
    MANY: ("sm_75", "sm_90", "compute_90"),
    VARIABLES: ("sm_75", "sm_90"),
}
CODECS: tuple[cuda.Codec, ...] = ("none", "lz4", "zstd", "balance")

# The host code: it uses the wrappers as a program would, and has data with relocations of its own.
HOST = """
#include <stdint.h>
#include <stdio.h>
struct wrapper { uint32_t magic, version; const unsigned char *data; const void *more; };
extern const struct wrapper fatbin_wrappers[] __attribute__((visibility("hidden")));
static const char *const names[] = {"zero", "one", "two"};
static int zeros[1000], filled[] = {40, 2};
const char *name_of(int i) { return names[i]; }
int answer(void) { return filled[0] + filled[1] + zeros[999]; }
unsigned long long region_sum(int i) { // its magic number in the upper half
    uint32_t magic = *(const uint32_t *)fatbin_wrappers[i].data, sum = 0;
    uint64_t size = *(const uint64_t *)(fatbin_wrappers[i].data + 8);
    for (uint64_t at = 16; at < 16 + size; at++)
        sum = sum * 31 + fatbin_wrappers[i].data[at];
    return (unsigned long long)magic << 32 | sum;
}
"""
MAIN = """
int main(int argc, char **argv) {
    (void)argv;
    for (int i = 0; i < argc - 1; i++) printf("%llx\\n", region_sum(i));
    printf("%d %s\\n", answer(), name_of(2));
    return 0;
}
"""


Builder = Callable[[Path], Path]
SAMPLES: dict[str, Builder] = {}


def sample(build: Builder) -> Builder:
    SAMPLES[build.__name__] = build
    return build


@cache
def image(source: str, arch: str, *options: str) -> bytes:
    """Return a cubin or PTX."""
    return cuda.nvrtc_compile(source, arch, options)


@cache
def linked(arch: str, *sources: str) -> bytes:
    """Return a cubin linked by nvlink from sources."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.cubin") for number in range(len(sources))]
        for path, source in zip(paths, sources, strict=True):
            path.write_bytes(image(source, arch, "-rdc=true"))
        cuda.run("nvlink", f"-arch={arch}", *paths, "-o", Path(folder, "linked"))
        return Path(folder, "linked").read_bytes()


def region(source: str, codec: cuda.Codec = "balance", archs: Iterable[str] = ()) -> bytes:
    elements = [(a, "cubin" if a.startswith("sm_") else "ptx", image(source, a)) for a in archs or ARCHS[source]]
    return cuda.fatbin(elements, codec)


@cache
def three_regions(codec: cuda.Codec = "balance") -> tuple[bytes, bytes, bytes]:
    return region(ONE, codec), region(MANY, codec), region(VARIABLES, codec)


def link(
    out: Path,
    regions: Sequence[bytes],
    *flags: str,
    program: bool = False,
    bare: Sequence[int] = (),
    assembly: str = "",
    code: str = "",
) -> Path:
    """Link regions into a library or program, each with a wrapper unless its number is in `bare`.

    `assembly` is added to the regions' assembly text (whose labels are region0, region1, ...), `code` to the C source.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = cuda.HEAD
        for number, data in enumerate(regions):
            path = Path(folder, f"{number}.fatbin")
            path.write_bytes(data)
            label = f"region{number}"
            text += cuda.REGION.format(section=".nv_fatbin", label=label, path=path)
            if number not in bare:
                text += cuda.WRAPPER.format(version=1, label=label, more="0")
        (Path(folder) / "regions.s").write_text(text + assembly)
        (Path(folder) / "host.c").write_text(HOST + (MAIN if program else "") + code)
        kind = () if program else ("-shared", "-fPIC")
        files = [Path(folder, "host.c"), Path(folder, "regions.s")]
        cuda.c_compiler(*kind, *files, "-Wl,-z,noexecstack", "-o", out, *flags)
    return out


def linker_takes(flag: str) -> bool:
    """Return whether the linker knows an option (it only warns about an unknown -z)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.c").write_text("int x;")
        command = ["cc", "-shared", "-fPIC", "-o", f"{folder}/x.so", f"{folder}/x.c", flag]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode == 0 and "ignored" not in done.stderr


@sample
def none(folder: Path) -> Path:
    return link(folder / "libnone.so", three_regions("none"))


@sample
def lz4(folder: Path) -> Path:
    return link(folder / "liblz4.so", three_regions("lz4"))


@sample
def zstd(folder: Path) -> Path:
    return link(folder / "libzstd.so", three_regions("zstd"))


@sample
def balance(folder: Path) -> Path:
    return link(folder / "libbalance.so", three_regions())


@sample
def suffix(folder: Path) -> Path:
    """Build a tie: sm_90 and sm_90a in one region."""
    return link(folder / "libsuffix.so", [region(ONE, archs=("sm_75", "sm_90", "sm_90a")), region(MANY)])


@sample
def relocatable(folder: Path) -> Path:
    """Compile two sources with nvcc -rdc=true, which leaves the relocatable code of each and the linked code."""
    return _relocatable(folder / "librelocatable.so")


@sample
def relocatable_first(folder: Path) -> Path:
    """Build the same library with the relocatable code before the linked code, as in most libraries."""
    (folder / "first.s").write_text('.section __nv_relfatbin, "a"')
    return _relocatable(folder / "libfirst.so", folder / "first.s")


def _relocatable(out: Path, *sources: Path) -> Path:
    folder = out.parent
    parts, linked = [], []
    for arch in ("sm_75", "sm_90"):
        paths = []
        for number, source in enumerate((CALLER, CALLEE)):
            path = folder / f"{number}.{arch}.cubin"
            path.write_bytes(image(source, arch, "-rdc=true"))
            paths.append(path)
        parts.append([path.read_bytes() for path in paths])
        out = folder / f"linked.{arch}.cubin"
        cuda.run("nvlink", f"-arch={arch}", *paths, "-o", out)
        linked.append((arch, "cubin", out.read_bytes()))
    regions = [
        cuda.fatbin([("sm_75", "cubin", a), ("sm_90", "cubin", b)], "balance", ["-c"])
        for a, b in zip(*parts, strict=True)
    ]
    return cuda.shared_library(out, [cuda.fatbin(linked, "balance", ["-link"])], regions, sources=sources)


@sample
def relr(folder: Path) -> Path:
    """Build pointers with packed relocations."""
    return link(folder / "librelr.so", three_regions(), "-Wl,-z,pack-relative-relocs")


@sample
def aligned(folder: Path) -> Path:
    """Build segments aligned to 2 MiB."""
    return link(folder / "libaligned.so", three_regions(), "-Wl,-z,max-page-size=0x200000")


@sample
def pie(folder: Path) -> Path:
    return link(folder / "pie", three_regions(), "-fPIE", "-pie", program=True)


@sample
def fixed(folder: Path) -> Path:
    return link(folder / "fixed", three_regions(), "-fno-pie", "-no-pie", program=True)


@sample
def unwrapped(folder: Path) -> Path:
    """Build a region without a wrapper or references, as nvcc leaves for a source without kernels."""
    return link(folder / "libunwrapped.so", three_regions(), bare=[2])


@sample
def referenced(folder: Path) -> Path:
    """Build a region without a wrapper; code takes its address."""
    hidden = 'extern const char region2[] __attribute__((visibility("hidden")));'
    code = f"{hidden}\nconst void *region(void) {{ return region2; }}"
    return link(folder / "libreferenced.so", three_regions(), bare=[2], assembly="\n.globl region2\n", code=code)


@sample
def inside(folder: Path) -> Path:
    """Build a symbol in the middle of a region."""
    return link(folder / "libinside.so", three_regions(), assembly="\n.globl middle\n.set middle, region1 + 64\n")


@sample
def symbols(folder: Path) -> Path:
    """Build an exported symbol at the start of each region."""
    globals_ = "".join(f"\n.globl region{n}\n" for n in range(3))
    return link(folder / "libsymbols.so", three_regions(), assembly=globals_)


@sample
def small(folder: Path) -> Path:
    """Build less than a page of GPU code."""
    return link(folder / "libsmall.so", [region(ONE, "zstd", ["sm_75"])])


@sample
def scattered(folder: Path) -> Path:
    """Build a region and a bare cubin in .rodata, in addition to the usual section."""
    (folder / "odd.fatbin").write_bytes(region(ONE))
    (folder / "odd.cubin").write_bytes(image(MANY, "sm_90"))
    assembly = f"""
        .section .rodata
        .balign 8
        .incbin "{folder / "odd.fatbin"}"
        .balign 16
        .8byte 0x1122334455667788
        .incbin "{folder / "odd.cubin"}"
    """
    return link(folder / "libscattered.so", [region(VARIABLES)], assembly=assembly)


# The contents of .ldata in `outside`, in order: label, kind, architecture. Each is MANY; there's host data between some
# of them.
OUTSIDE = (
    ("", "cubin", "sm_75"), ("", "cubin", "sm_80"), ("host0", "", ""), ("", "cubin", "sm_90"),
    ("", "frame", "sm_75"), ("", "frame", "sm_80"), ("", "frame", "sm_90"), ("host1", "", ""), ("", "frame", "sm_80"),
    ("table0", "cubin", "sm_80"), ("table1", "cubin", "sm_75"), ("table2", "cubin", "sm_90"), ("", "bare", "sm_75"),
    ("host2", "", ""),
)  # fmt: skip
OUTSIDE_CODE = """
extern const uint64_t table1[], table2[], host0[], host1[], host2[];
extern const uint64_t table0[] __attribute__((visibility("hidden")));
const uint64_t *const outside[] = {table0, table1, table2}; // by a relative relocation, and by symbols
extern uint64_t after[];
uint64_t outside_size(int i) { return outside[i][0] == 0x00100001ba55ed50 ? outside[i][1] : ~0ull; }
uint64_t outside_host(void) { after[0]++; return host0[0] + host1[0] + host2[0] + after[0]; }
"""


@sample
def outside(folder: Path) -> Path:
    """Build regions and compressed cubins among the host's data, some of them referenced, as in cuFFT and cuBLASLt.

    Each element takes several pages, in a segment that the program may write to.
    """
    import zstandard

    assembly = '\n.section .ldata, "aw"\n'
    for number, (label, kind, arch) in enumerate(OUTSIDE):
        assembly += f".balign 32\n{f'.globl {label}' if label else ''}\n{label + ':' if label else ''}\n"
        if not kind:
            assembly += f".8byte 0x0123456700000000 + {number}\n"
            continue
        code = image(BULKY, arch)
        if kind == "frame":
            code = zstandard.compress(code)
        elif kind == "cubin":
            code = region(BULKY, "none", [arch])
        path = folder / f"{number}.part"
        path.write_bytes(code)
        assembly += f'.incbin "{path}"\n'
    assembly += ".balign 32\n.globl after\nafter: .8byte 5, 0, 0\n"
    return link(folder / "liboutside.so", [region(VARIABLES)], assembly=assembly, code=OUTSIDE_CODE)


@sample
def pieces(folder: Path) -> Path:
    """Build six hundred regions of whole pages that a table points to, and the usual section with one large region."""
    code = forge.region(forge.element(forge.cubin(3) + bytes(12_000), arch=75))
    size = len(code) + -len(code) % 4096
    (folder / "each.fatbin").write_bytes(code.ljust(size, b"\0"))
    assembly = '\n.section .ldata, "aw"\n.balign 4096\nstart:\n'
    assembly += f'.rept 600\n.incbin "{folder / "each.fatbin"}"\n.endr\n'
    assembly += '\n.section .data.rel.ro, "aw"\n.balign 8\n'
    assembly += "".join(f".8byte start + {size * number}\n" for number in range(600))
    large = forge.region(forge.element(forge.cubin(3) + bytes(80_000), arch=75))
    return link(folder / "libpieces.so", [region(VARIABLES), large], assembly=assembly)


@sample
def arm(folder: Path) -> Path:
    """Build a library whose headers and relocations are rewritten for aarch64; its code isn't."""
    path = link(folder / "libarm.so", three_regions(), "-Wl,-z,max-page-size=0x10000")
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 18, 183)
    (shoff,) = struct.unpack_from("<Q", data, 40)
    (shnum,) = struct.unpack_from("<H", data, 60)
    types = {8: 1027, 6: 1025, 7: 1026, 1: 257}
    for section in range(shnum):
        _, type_, _, _, offset, size = struct.unpack_from("<IIQQQQ", data, shoff + 64 * section)
        if type_ == 4:
            for at in range(offset, offset + size, 24):
                struct.pack_into("<I", data, at + 8, types[struct.unpack_from("<I", data, at + 8)[0]])
    path.write_bytes(data)
    return path


@sample
def plain(folder: Path) -> Path:
    """Build a library without GPU code."""
    (folder / "plain.c").write_text("int answer(void) { return 42; }")
    cuda.c_compiler("-shared", "-fPIC", folder / "plain.c", "-o", folder / "libplain.so")
    return folder / "libplain.so"


def _object(folder: Path, name: str, data: bytes) -> Path:
    (folder / f"{name}.fatbin").write_bytes(data)
    text = cuda.HEAD + cuda.REGION.format(section=".nv_fatbin", label="region", path=folder / f"{name}.fatbin")
    (folder / f"{name}.s").write_text(text + cuda.WRAPPER.format(version=1, label="region", more="0"))
    cuda.c_compiler("-c", folder / f"{name}.s", "-o", folder / f"{name}.o")
    return folder / f"{name}.o"


@sample
def object_(folder: Path) -> Path:
    return _object(folder, "one", region(ONE))


@sample
def archive(folder: Path) -> Path:
    """Build an archive of two members with GPU code and one without; one name is too long for its header."""
    long = "a_name_that_is_much_longer_than_sixteen"
    members = [_object(folder, "one", region(ONE)), _object(folder, long, region(MANY, "zstd"))]
    (folder / "none.c").write_text("int nothing;")
    cuda.c_compiler("-c", folder / "none.c", "-o", folder / "none.o")
    out = folder / "libarchive.a"
    subprocess.run(["ar", "rcs", out, members[0], folder / "none.o", members[1]], check=True)
    return out


@sample
def fatbin(folder: Path) -> Path:
    path = folder / "raw.fatbin"
    path.write_bytes(region(ONE) + region(MANY, "zstd"))
    return path


@sample
def cubin(folder: Path) -> Path:
    path = folder / "one.cubin"
    path.write_bytes(image(ONE, "sm_90"))
    return path


@sample
def ptx(folder: Path) -> Path:
    path = folder / "one.ptx"
    path.write_bytes(image(ONE, "compute_90"))
    return path


@sample
def large(folder: Path) -> Path:
    """Build a file of 160 MB, which takes a while to write."""
    path = folder / "large.fatbin"
    body = forge.element(b"", size=80 << 20, kind=9) + bytes(range(256)) * (80 << 12)
    path.write_bytes(forge.region(body * 2))
    return path


@sample
def nvcc(folder: Path) -> Path:
    """Return the folder with nvcc's output for two sources: objects, libraries and an archive. Needs `have_cxx()`."""
    sources = {
        "kernels.cu": "__global__ void f(int *x) { *x = 1; }\nvoid g(int *x) { f<<<1, 1>>>(x); }",
        "nothing.cu": "int nothing() { return 0; }",
    }
    for name, text in sources.items():
        (folder / name).write_text(text)
    codes = ["-gencode=arch=compute_75,code=sm_75", "-gencode=arch=compute_90,code=[sm_90,compute_90]"]
    options = ["-Xcompiler", "-fPIC", *codes]
    cuda.nvcc(*options, "-c", *sources, cwd=folder)
    cuda.nvcc(*options, "-rdc=true", "-c", "kernels.cu", "-o", "rdc.o", cwd=folder)
    cuda.nvcc(*options, "-shared", "kernels.o", "nothing.o", "-o", "libplain.so", cwd=folder)
    cuda.nvcc(*options, "-rdc=true", "-shared", *sources, "-o", "librdc.so", cwd=folder)
    subprocess.run(["ar", "rcs", "libboth.a", "kernels.o", "rdc.o", "nothing.o"], cwd=folder, check=True)
    return folder
