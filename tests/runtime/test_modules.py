"""GPU code in a trace: loaded, looked up and launched, with arguments; and what's done with that."""

import functools
import hashlib
import io
import os
import resource
import stat
import subprocess
import sys

import pytest

from gpt.stream import wire
from tests import cuda
from tests.demo.build import build
from tests.runtime import hooked
from tests.runtime.clients import ARGUMENTS, LOADS
from tests.runtime.hooked import Trace

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo(){ret;}\n.visible .entry bar(){ret;}\n"


def test_a_module_in_memory_has_its_digest(tmp_path):
    trace = hooked.traced(tmp_path, 'int main(void) { begin(); launch(kernel("foo")); kernel("foo"); }')
    first, second = trace.of("module")
    assert (first["type"], first["size"]) == ("ptx", len(PTX)) and "data" not in first
    if "path" not in first:
        assert first["sha256"] == second["sha256"] == hashlib.sha256(PTX).hexdigest()
    else:  # the text is a constant in the program
        data = (tmp_path / "client").read_bytes()
        assert data[first["offset"] :].startswith(PTX)
    assert [f["module"] for f in trace.of("function")] == [first["id"], second["id"]]


def test_digests_of_all_sizes(tmp_path):
    """Blocks of the digest have 64 bytes, and the last one ends with the size."""
    sizes = (0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 65536)
    source = """
    int main(int argc, char **argv) {
        begin();
        for (int i = 1; i < argc; i++) {
            size_t size = atoi(argv[i]) + strlen(PTX);
            char *copy = calloc(1, size + 1);
            memset(copy, '\\n', size);
            memcpy(copy, PTX, strlen(PTX));
            void *module;
            OK(cuModuleLoadData(&module, copy));
        }
    }
    """
    modules = hooked.traced(tmp_path, source, args=[*map(str, sizes)]).of("module")
    assert [module["sha256"] for module in modules] == [
        hashlib.sha256(PTX + b"\n" * size).hexdigest() for size in sizes
    ]


@pytest.mark.parametrize(
    "claim", ["head->e_shoff = 1ull << 40", "section->sh_size = 1ull << 40", "section->sh_offset = -4096ull"]
)
def test_image_with_too_large_size(tmp_path, claim):
    """The driver may never read the claimed bytes. The hook doesn't read past the existing ones."""
    source = f"""
    #include <elf.h>
    int main(void) {{
        begin();
        Elf64_Ehdr *head = calloc(1, 4096);
        Elf64_Shdr *section = (Elf64_Shdr *)(head + 1);
        memcpy(head->e_ident, ELFMAG, SELFMAG);
        head->e_machine = 190, head->e_flags = 90;
        head->e_shoff = sizeof(*head), head->e_shnum = 1, head->e_shentsize = sizeof(*section);
        section->sh_type = SHT_PROGBITS, section->sh_size = 64;
        {claim};
        void *module;
        OK(cuModuleLoadData(&module, head));
    }}
    """
    (module,) = hooked.traced(tmp_path, source).of("module")
    assert module["type"] == "cubin"
    assert "sha256" not in module and "path" not in module


def test_a_module_in_a_mapped_file_has_its_place(tmp_path):
    (tmp_path / "code").write_bytes(bytes(4096 + 100) + PTX)
    source = f"""
    #include <fcntl.h>
    #include <sys/mman.h>
    int main(void) {{
        begin();
        char *file = mmap(0, 8192, PROT_READ, MAP_PRIVATE, open("{tmp_path}/code", O_RDONLY), 0);
        void *module;
        OK(cuModuleLoadData(&module, file + 4196));
        int (*load)(void **, const char *) = dlsym(driver, "cuModuleLoad");
        assert(!chdir("{tmp_path}"));
        OK(load(&module, "copy.ptx"));
    }}
    """
    (tmp_path / "copy.ptx").write_bytes(PTX)
    mapped, named = hooked.traced(tmp_path, source).of("module")
    assert (mapped["path"], mapped["offset"], mapped["size"]) == (f"{tmp_path}/code", 4196, len(PTX))
    assert (named["path"], named["offset"], named["type"]) == (f"{tmp_path}/copy.ptx", 0, "ptx")


def test_functions_are_recorded_once_a_module(tmp_path):
    source = r"""
    int main(void) {
        begin();
        void *module, *function, *other;
        OK(cuModuleLoadData(&module, PTX));
        for (int i = 0; i < 100; i++)
            OK(cuModuleGetFunction(&function, module, "foo"));
        assert(cuModuleGetFunction(&other, module, "not there") == 500);
        int (*load)() = dlsym(driver, "cuLibraryLoadData");
        int (*get)(void **, void *, const char *) = dlsym(driver, "cuLibraryGetKernel");
        int (*as_function)(void **, void *) = dlsym(driver, "cuKernelGetFunction");
        void *library, *kernel;
        OK(load(&library, PTX, 0, 0, 0, 0, 0, 0));
        OK(get(&kernel, library, "bar"));
        OK(as_function(&other, kernel));
        launch(function), launch(kernel), launch(other);
    }
    """
    trace = hooked.traced(tmp_path, source)
    assert trace.functions == ["foo", "bar"] and trace.launches == {"foo": 1, "bar": 2}


def test_launches_are_counted_when_no_call_is_recorded(tmp_path):
    source = 'int main(void) { begin(); void *f = kernel("foo"); for (int i = 0; i < 1000; i++) launch(f); }'
    trace = hooked.traced(tmp_path, source, options=["--calls", "none"])
    assert not trace.calls and trace.launches == {"foo": 1000} and trace.functions == ["foo"]


@pytest.mark.parametrize("words", ["kernel,cuDriver*", "all,-cu[A-CEIM]*,-cuDeviceP*,-sync", "-all,cuDriver*,kernel"])
def test_words_of_calls(tmp_path, words):
    source = r"""
    int main(void) {
        begin();
        int (*sync)(void *) = dlsym(driver, "cuStreamSynchronize"), version;
        launch(kernel("foo")), sync(0), cuDriverGetVersion(&version);
    }
    """
    trace = hooked.traced(tmp_path, source, options=["--calls", words])
    assert trace.names == {"cuLaunchKernel": 1, "cuDriverGetVersion": 1}


def test_arguments(tmp_path):
    program = hooked.compile_c(tmp_path / "client", ARGUMENTS)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")
    memory, host, wide, stream_, event = map(int, done.stdout.split())
    calls = [
        c for c in Trace(tmp_path / "t.mp").calls if c["name"].startswith(("cuMem", "cuEvent", "cuStream", "cuLaunch"))
    ]
    keys = ("name", "type", "op", "result", "to", "from", "bytes", "stream", "object", "shared", "cooperative")
    found = [{k: c[k] for k in keys if k in c} for c in calls]
    assert found[0] == {
        "name": "cuMemAlloc",
        "type": "memory",
        "op": "alloc",
        "result": 0,
        "to": memory,
        "from": 0,
        "bytes": 4096,
        "stream": 0,
    }
    assert found[1] | {"to": memory, "from": host, "bytes": 1000, "op": "HtoD", "type": "memcpy"} == found[1]
    assert found[2] | {"object": stream_, "type": "stream", "op": "create"} == found[2]
    assert found[3] | {"to": host, "from": memory, "bytes": 2000, "op": "DtoH", "stream": stream_} == found[3]
    assert found[4] | {"to": memory, "from": memory + 2048, "bytes": 3, "op": "DtoD"} == found[4]
    assert found[5] | {"to": memory, "bytes": 40, "type": "memset"} == found[5]
    assert found[6] | {"to": wide, "bytes": 5120, "op": "alloc"} == found[6]
    assert found[7] | {"to": wide, "from": host, "bytes": 1000, "type": "memcpy"} == found[7]
    assert found[9] | {"object": event, "stream": stream_, "type": "event", "op": "record"} == found[9]
    assert found[10] | {"stream": stream_, "type": "sync", "op": "stream"} == found[10]
    launch = calls[11]
    assert [launch[f"{w}_{c}"] for w in ("grid", "block", "cluster") for c in "xyz"] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert found[11] | {"shared": 77, "cooperative": 1, "stream": stream_, "type": "kernel"} == found[11]
    assert found[12] | {"result": 1, "bytes": 100000} == found[12]
    assert found[13] | {"to": memory, "type": "memory", "op": "free"} == found[13]


def test_libraries_also_those_that_were_closed(tmp_path):
    build(tmp_path / "demo")
    source = f"""
    int main(void) {{
        begin();
        void *handle = dlopen("{tmp_path}/demo/libdemo.so", RTLD_NOW);
        assert(handle && !dlclose(handle));
    }}
    """
    libraries = {r["path"]: r for r in hooked.traced(tmp_path, source).of("library")}
    demo = libraries[f"{tmp_path}/demo/libdemo.so"]
    assert demo["gpu"] > 1000 and demo["size"] == (tmp_path / "demo" / "libdemo.so").stat().st_size
    assert {path for path, record in libraries.items() if "gpu" in record} == {demo["path"]}
    notes = subprocess.run(["readelf", "-n", demo["path"]], capture_output=True, text=True).stdout
    assert demo.get("build_id", "none") in notes or "Build ID" not in notes


def test_library_opened_by_descriptor_has_its_own_name(tmp_path):
    build(tmp_path / "demo")
    source = f"""
    int main(void) {{
        begin();
        char name[32];
        sprintf(name, "/proc/self/fd/%d", open("{tmp_path}/demo/libdemo.so", 0));
        assert(dlopen(name, RTLD_NOW));
    }}
    """
    paths = {r["path"] for r in hooked.traced(tmp_path, "#include <fcntl.h>" + source).of("library")}
    assert f"{tmp_path}/demo/libdemo.so" in paths and not any(path.startswith("/proc") for path in paths)


@pytest.mark.full
def test_a_library_is_slimmed_to_what_a_trace_saw(tmp_path, monkeypatch):
    folder = tmp_path / "demo"
    library = build(folder)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("GPT_SIM_ARCH", "9.0")
    done = hooked.run(tmp_path / "t.mp", folder / "main", "fill")
    assert "wrong" in done.stderr or "item 0" in done.stderr, done  # kernels don't run in this mode
    trace = Trace(tmp_path / "t.mp")
    assert trace.functions == ["_Z14setScalarItemsPffi"] and trace.launches == {"_Z14setScalarItemsPffi": 1}
    (module,) = trace.of("module")
    assert (module["path"], module["type"]) == (str(library), "fatbin")
    assert library.read_bytes()[module["offset"] :][:4] == b"\x50\xed\x55\xba"
    (device,) = trace.of("device")
    assert (device["arch"], device["runs"]) == ("sm_90", "ptx")
    numbers = ("warps", "blocks", "clock_hz", "memory_hz", "bus_bits")
    assert tuple(device[name] for name in numbers) == (64, 32, 1_980_000_000, 3_201_000_000, 6144)
    assert 0 < device["sms"] < 256

    stage = f"{sys.executable} -c 'import sys; from gpt.stages.%s import main; main()'"
    script = " | ".join(
        (
            f"{stage % 'extract'} {library}",
            f"{stage % 'locate'} --used {tmp_path}/t.mp",
            f"{stage % 'patch'} -o {tmp_path}/slim --mode compact",
        )
    )
    result = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, cwd=hooked.ROOT)
    assert result.returncode == 0, result.stderr
    left = subprocess.run(
        [cuda.tool("cuobjdump"), "-lelf", "-lptx", tmp_path / "slim" / "libdemo.so"], capture_output=True, text=True
    ).stdout
    assert left.count("PTX file") == 1 and left.count("ELF file") == 0  # the simulated device's choice
    assert "patched" in {r["kind"] for r in wire.read_records(io.BytesIO(result.stdout), "patch")}


def test_images_are_saved_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = hooked.traced(tmp_path, LOADS, options=["--save-modules", "kept"])
    text = PTX + b"\n" * (99999 - len(PTX))
    (path,) = (tmp_path / "kept").iterdir()  # and no hidden file
    assert path.name == f"{hashlib.sha256(text).hexdigest()}.ptx" and path.read_bytes() == text
    found = trace.of("module")
    for child in trace.of("child"):
        found += Trace(tmp_path / child["path"]).of("module")
    assert len(found) == 11 and all(r["saved"] == str(path) and "path" not in r for r in found)

    line = [sys.executable, "-c", "from gpt.stages.extract import main; main()"]
    with open(tmp_path / "t.mp", "rb") as file:
        done = subprocess.run(line, stdin=file, capture_output=True, cwd=hooked.ROOT)
    assert done.returncode == 0, done.stderr
    elements = [r for r in wire.read_records(io.BytesIO(done.stdout), "extract") if r["kind"] == "element"]
    assert len(elements) == 8 and [k["name"] for k in elements[0]["kernels"]] == ["foo", "bar"]


def test_loader_of_image_in_no_file(tmp_path):
    library = """
    #include <stdlib.h>
    #include <string.h>
    int cuModuleLoadData(void **, const void *);
    int load(const char *image) {
        void *module;
        return cuModuleLoadData(&module, strcpy(malloc(strlen(image) + 1), image));
    }
    """
    source = r"""
    int main(void) {
        void *module;
        begin();
        int (*load)(const char *) = dlsym(dlopen("libload.so", RTLD_NOW), "load");
        assert(!load(PTX));
        OK(cuModuleLoadData(&module, strcpy(malloc(sizeof(PTX)), PTX)));
        OK(cuModuleLoadData(&module, PTX));
    }
    """
    flags = ["-shared", "-fPIC"]
    hooked.compile_c(tmp_path / "libload.so", library, *flags, prelude=False)
    trace = hooked.traced(tmp_path, source, f"-Wl,-rpath,{tmp_path}")
    mine, own, in_a_file = trace.of("module")
    assert mine["loader"] == str(tmp_path / "libload.so")
    assert own["loader"] == str(tmp_path / "client")
    assert "loader" not in in_a_file and in_a_file["path"] == str(tmp_path / "client")


def test_partly_saved_image_is_removed(tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        program = hooked.compile_c(tmp_path / "client", LOADS)
        done = hooked.run(tmp_path / "t.mp", program, options=["--save-modules", folder])
        assert done.returncode == 0 and not list(folder.iterdir())
        lines = done.stderr.splitlines()  # one a process
        assert lines and all(x.endswith(".ptx: No space left on device; it is not saved") for x in lines)
        assert len(lines) <= 4 and not any("saved" in r for r in Trace(tmp_path / "t.mp").of("module"))
    finally:
        subprocess.run(["umount", folder], check=True)


def test_image_larger_than_the_file_limit(tmp_path):
    source = r"""
    int main(void) {
        begin();
        char *image = memset(malloc(3 << 20), '\n', 3 << 20);
        memcpy(image, PTX, strlen(PTX)), image[(3 << 20) - 1] = 0;
        void *module;
        OK(cuModuleLoadData(&module, image));
    }
    """
    program = hooked.compile_c(tmp_path / "client", source)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    # Caches the outline, since requesting it takes a file.
    assert hooked.run(tmp_path / "first.mp", program).returncode == 0
    done = hooked.run(tmp_path / "t.mp", program, options=["--save-modules", tmp_path / "saved"], preexec_fn=limit)
    assert done.returncode == 0 and done.stderr.endswith(".ptx: File too large; it is not saved\n")
    assert not list((tmp_path / "saved").iterdir()) and Trace(tmp_path / "t.mp").kinds["module"] == 1


def test_image_folder_cannot_be_created(tmp_path):
    done = hooked.run(tmp_path / "t.mp", "true", options=["--save-modules", tmp_path / "no" / "such"])
    assert (done.returncode, done.stderr) == (1, f"gpt-hook: error: {tmp_path}/no/such: No such file or directory\n")


def test_images_in_files_have_digests_while_they_are_small(tmp_path):
    small, large = PTX + b"\n" * 1000, PTX + b"\n" * (5 << 20)
    (tmp_path / "small.ptx").write_bytes(small)
    (tmp_path / "large.ptx").write_bytes(large)
    source = f"""
    #include <fcntl.h>
    #include <sys/mman.h>
    int main(void) {{
        begin();
        int (*load)(void **, const char *) = dlsym(driver, "cuModuleLoad");
        void *module;
        OK(load(&module, "{tmp_path}/small.ptx"));
        OK(load(&module, "{tmp_path}/large.ptx"));
        int size = {len(small)};
        char *file = mmap(0, size, PROT_READ, MAP_PRIVATE, open("{tmp_path}/small.ptx", O_RDONLY), 0);
        OK(cuModuleLoadData(&module, file));
        file = mmap(0, {len(large)}, PROT_READ, MAP_PRIVATE, open("{tmp_path}/large.ptx", O_RDONLY), 0);
        OK(cuModuleLoadData(&module, file));
        for (int i = 0; i < 12; i++)
            OK(load(&module, "{tmp_path}/middle.ptx"));
    }}
    """
    (tmp_path / "middle.ptx").write_bytes(PTX + b"\n" * (3 << 20))
    found = hooked.traced(tmp_path, source).of("module")
    digest = hashlib.sha256(small).hexdigest()
    assert [r.get("sha256") for r in found[:4]] == [digest, None, digest, None]
    assert all(r["path"].startswith(str(tmp_path)) for r in found)
    assert ["sha256" in r for r in found[4:]] == [True] * 10 + [False] * 2


@pytest.mark.parametrize("shape", ["link", "of another user", "others write", "fifo"])
def test_saved_image_replaced_by_another_user_is_rewritten(tmp_path, shape):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    text = PTX + b"\n" * (99999 - len(PTX))
    (folder := tmp_path / "kept").mkdir()
    path = folder / f"{hashlib.sha256(text).hexdigest()}.ptx"
    (tmp_path / "victim").write_text("precious")
    match shape:
        case "link":
            path.symlink_to(tmp_path / "victim")
        case "fifo":
            os.mkfifo(path)
        case _:
            path.write_text("evil")
            os.chown(path, 2002, 2002) if shape == "of another user" else path.chmod(0o666)
    hooked.traced(tmp_path, LOADS, options=["--save-modules", folder])
    assert stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == text
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.full
def test_saved_image_has_no_owner_without_user_ids(tmp_path):
    """In a user namespace without a mapping, another user's file has the same user ID as the process."""
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    text = PTX + b"\n" * (99999 - len(PTX))
    (folder := tmp_path / "kept").mkdir()
    path = folder / f"{hashlib.sha256(text).hexdigest()}.ptx"
    path.write_text("evil")
    os.chown(path, 2002, 2002)
    program = hooked.compile_c(tmp_path / "client", LOADS)
    enter = (
        "import ctypes, os, sys; assert not ctypes.CDLL(None).unshare(0x10000000); os.execv(sys.argv[1], sys.argv[1:])"
    )
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--save-modules", folder, program)
    done = subprocess.run([sys.executable, "-c", enter, *line], capture_output=True, text=True, check=False)
    if "AssertionError" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == text
