"""`gpt-hook run --replace`: which libraries are loaded instead, and what the program can notice."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from elftools.elf.elffile import ELFFile

from tests import cuda
from tests.demo.build import build
from tests.packages import PACKAGES, fetch
from tests.runtime import hooked
from tests.runtime.hooked import Trace
from tests.stages.tools import extract, located, patch
from tests.stages.tools import run as tool

BUILD_ID = "0x0123456789abcdef"
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int neighbour(void);
static int loads;
__attribute__((constructor)) static void load(void) { loads++; }
void tell(void) {
    Dl_info info;
    dladdr(tell, &info);
    struct link_map *map;
    dladdr1(tell, &info, (void **)&map, RTLD_DL_LINKMAP);
    void *beside = dlopen("$ORIGIN/libbeside.so", RTLD_LAZY), *inside = dlopen("libinside.so", RTLD_LAZY);
    printf("%s %d %s %s %d%d\n", WHICH, neighbour(), info.dli_fname, map->l_name, !!beside, !!inside);
    fflush(stdout);
}
"""
SMALL = "int neighbour(void) { return 7; }\n"
LOAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int count, char **names) {
    (void)count;
    for (char **name = names + 1; *name; name++) {
        int space = !strncmp(*name, "new:", 4);
        void *handle = space ? dlmopen(LM_ID_NEWLM, *name + 4, RTLD_LAZY) : dlopen(*name, RTLD_LAZY);
        void (*tell)(void) = handle ? (void (*)(void))dlsym(handle, "tell") : 0;
        if (!tell)
            return puts(dlerror()), 1;
        tell();
        if (getenv_close())
            dlclose(handle);
    }
}
"""


def compile_library(path, source, *flags, which=None, build_id=BUILD_ID):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + ".c")
    file.write_text(source)
    which = [f'-DWHICH="{which}"'] if which else []
    cuda.c_compiler("-shared", "-fPIC", *which, file, "-o", path, f"-Wl,--build-id={build_id}", *flags)
    file.unlink()
    return path


@pytest.fixture(scope="module", params=["RUNPATH", "RPATH"])
def built(request, tmp_path_factory):
    """Return libraries laid out as in wheels: each finds its neighbours, and other packages' libraries, by $ORIGIN."""
    folder = tmp_path_factory.mktemp("built")
    site = folder / "site"
    compile_library(site / "other" / "lib" / "libneighbour.so", SMALL)
    compile_library(site / "app" / "lib" / "libbeside.so", SMALL)
    compile_library(site / "app" / "lib" / "inner" / "libinside.so", SMALL)
    tags = "--enable-new-dtags" if request.param == "RUNPATH" else "--disable-new-dtags"
    flags = [f"-L{site}/other/lib", "-lneighbour", "-Wl,-soname,libfoo.so.1"]
    flags.append(f"-Wl,{tags},-rpath,$ORIGIN/../../other/lib:${{ORIGIN}}/inner")
    library = compile_library(site / "app" / "lib" / "libfoo.so.1", LIBRARY, *flags, which="original")
    (site / "app" / "lib" / "libfoo.so").symlink_to("libfoo.so.1")
    compile_library(folder / "slim" / "libfoo.so.1", LIBRARY, *flags, which="replaced")
    program(folder / "load")
    source = "void tell(void); int main(void) { tell(); }"
    (folder / "linked.c").write_text(source)
    links = [library, "-Wl,-rpath,$ORIGIN/lib", f"-Wl,-rpath-link,{site}/other/lib"]
    cuda.c_compiler(folder / "linked.c", "-o", site / "app" / "linked", *links)
    return folder


@pytest.fixture
def layout(built, tmp_path):
    """Return a copy of these libraries for one test."""
    shutil.copytree(built, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path


def program(path):
    """Build a program that loads the libraries in its arguments, `new:NAME` into a new namespace. With CLOSE set, it
    closes each again.
    """
    text = LOAD.replace("getenv_close()", 'getenv("CLOSE")').replace(
        "#include <stdio.h>", "#include <stdio.h>\n#include <stdlib.h>"
    )
    path.with_suffix(".c").write_text(text)
    cuda.c_compiler(path.with_suffix(".c"), "-o", path, "-ldl")
    return path


def replaced(folder, *line, **more):
    """Run a command with slim/ and return its lines; there's no other output."""
    done = run(folder, *line, **more)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def run(folder, *line, slim="slim", **more):
    options = ["-f", "--replace", folder / slim]
    return hooked.run(folder / "t.mp", *line, options=options, device="real", **more)


def test_needed_by_name(layout):
    path = f"{layout}/site/app/lib/libfoo.so.1"
    assert subprocess.run([layout / "site/app/linked"], capture_output=True, text=True).stdout == (
        f"original 7 {path} {path} 11\n"
    )
    assert replaced(layout, layout / "site/app/linked") == [f"replaced 7 {path} {path} 11"]


@pytest.mark.parametrize("name", ["{}/libfoo.so.1", "{}/libfoo.so", "{}/../lib//libfoo.so", "./libfoo.so", "libfoo.so"])
def test_loaded_by_name(layout, name):
    folder = layout / "site" / "app" / "lib"
    name = name.format(folder)
    more = {"cwd": folder, "env": os.environ | ({} if "/" in name else {"LD_LIBRARY_PATH": str(folder)})}
    without = subprocess.run([layout / "load", name], capture_output=True, text=True, **more).stdout.splitlines()
    assert replaced(layout, layout / "load", name, **more) == [line.replace("original", "replaced") for line in without]


def test_one_library_under_many_names(layout):
    folder = layout / "site" / "app" / "lib"
    names = [folder / "libfoo.so", folder / "libfoo.so.1", folder / ".." / "lib" / "libfoo.so.1", "libfoo.so.1"]
    assert replaced(layout, layout / "load", *names) == [f"replaced 7 {folder}/libfoo.so {folder}/libfoo.so 11"] * 4


def test_a_folder_with_a_file_for_each_name(layout):
    """If two files in the folder fit one library, the first one is used."""
    folder = layout / "site" / "app" / "lib"
    data = (layout / "slim" / "libfoo.so.1").read_bytes()
    (layout / "slim" / "libfoo.so").write_bytes(data.replace(b"replaced", b"REPLACED"))
    (layout / "slim" / "libfoo.so.1.gpt-orig").write_bytes(data.replace(b"replaced", b"original"))
    names = [folder / "libfoo.so", folder / "libfoo.so.1", "libfoo.so.1"]
    lines = replaced(layout, layout / "load", *names)
    assert lines == [f"REPLACED 7 {folder}/libfoo.so {folder}/libfoo.so 11"] * 3
    lines = replaced(layout, layout / "load", folder / "libfoo.so.1", folder / "libfoo.so")
    assert lines == [f"replaced 7 {folder}/libfoo.so.1 {folder}/libfoo.so.1 11"] * 2


def test_name_in_no_file(layout):
    folder = layout / "site" / "app" / "lib"
    os.link(folder / "libfoo.so.1", folder / "libalias.so")
    (layout / "site" / "app" / "libpointer.so").symlink_to("lib/libfoo.so.1")
    # If a library is first loaded unreplaced, it stays so: one file is one object.
    path = f"{folder}/libalias.so"
    lines = replaced(layout, layout / "load", path, folder / "libfoo.so.1")
    assert lines == [f"original 7 {path} {path} 11"] * 2
    env = os.environ | {"LD_LIBRARY_PATH": f"{layout}/site/other/lib"}
    (line,) = replaced(layout, layout / "load", layout / "site" / "app" / "libpointer.so", env=env)
    assert line.startswith("replaced 7 ") and "/libpointer.so " in line


def test_closed_and_loaded_again(layout):
    name = f"{layout}/site/app/lib/libfoo.so.1"
    lines = replaced(layout, layout / "load", *[name] * 200, env=os.environ | {"CLOSE": "1"})
    assert lines == [f"replaced 7 {name} {name} 11"] * 200


def test_threads_with_small_stacks_load_at_once(layout):
    name = f"{layout}/site/app/lib/libfoo.so.1"
    source = f"""
    #include <dlfcn.h>
    #include <pthread.h>
    #include <stdio.h>
    static void *load(void *unused) {{
        for (int i = 0; i < 100; i++) {{
            void *handle = dlopen("{name}", RTLD_LAZY);
            if (!handle || dlclose(handle))
                return puts(dlerror()), unused;
        }}
        return unused;
    }}
    int main(void) {{
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 64 << 10);
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], &attributes, load, 0);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], 0);
        void *handle = dlopen("{name}", RTLD_LAZY);
        ((void (*)(void))dlsym(handle, "tell"))();
    }}
    """
    program = hooked.compile_c(layout / "threads", source, prelude=False)
    assert replaced(layout, program) == [f"replaced 7 {name} {name} 11"]


def test_failed_load_leaves_no_state(layout):
    name = f"{layout}/site/app/lib/libfoo.so.1"
    neighbour = layout / "site" / "other" / "lib" / "libneighbour.so"
    moved = neighbour.rename(layout / "moved")
    code = f"""
import ctypes, os
for i in range(50):
    try:
        ctypes.CDLL({name!r})
    except OSError as error:
        print(error)
os.rename({str(moved)!r}, {str(neighbour)!r})
ctypes.CDLL({name!r}).tell()
"""
    lines = replaced(layout, sys.executable, "-uc", code)
    fault = "libneighbour.so: cannot open shared object file: No such file or directory"
    assert lines == [fault] * 50 + [f"replaced 7 {name} {name} 11"]


def test_namespaces(layout):
    folder = f"{layout}/site/app/lib"
    env = os.environ | {"LD_LIBRARY_PATH": folder}
    name = f"{folder}/libfoo.so.1"
    lines = replaced(layout, layout / "load", name, "new:libfoo.so.1", "new:libfoo.so", name, env=env)
    assert [line.split()[0] for line in lines] == ["replaced"] * 4
    # The linker doesn't ask us about a name with a slash in dlmopen; that's another namespace's copy.
    lines = replaced(layout, layout / "load", f"new:{name}", name)
    assert lines == [f"original 7 {name} {name} 11", f"replaced 7 {name} {name} 11"]


def test_children_and_what_they_become(layout):
    linked = layout / "site" / "app" / "linked"
    fork = f"import os; os.fork(); os.execl({str(linked)!r}, 'x')"
    line = f'{linked}; {sys.executable} -c "{fork}"; exec env {linked}'
    lines = replaced(layout, "sh", "-c", line)
    assert [line.split()[0] for line in lines] == ["replaced"] * 4


# Libraries that aren't replaced


def refused(layout, fact):
    name = f"{layout}/site/app/lib/libfoo.so.1"
    done = run(layout, layout / "load", name, name, f"{layout}/site/app/lib/libfoo.so")
    assert done.stdout == f"original 7 {name} {name} 11\n" * 3 and done.returncode == 0
    fact = fact.format(f"{layout}/slim/libfoo.so.1")
    assert done.stderr == f"gpt-hook: warning: {name}: not replaced: {fact}\n"


@pytest.mark.parametrize(("build_id", "fact"), [("0x99", "another"), ("none", "no")])
def test_another_build_id(layout, build_id, fact):
    compile_library(layout / "slim" / "libfoo.so.1", SMALL, build_id=build_id)
    refused(layout, f"{{}} has {fact} build id")


def test_files_that_are_not_a_library(layout):
    slim = layout / "slim" / "libfoo.so.1"
    data = slim.read_bytes()
    slim.write_bytes(data[:-5000])
    refused(layout, "{}: is truncated")
    slim.write_bytes(b"")
    refused(layout, "{}: is not a shared object of this machine")
    slim.write_bytes(data[:18] + b"\xb7" + data[19:])  # aarch64
    refused(layout, "{}: is not a shared object of this machine")
    slim.unlink()
    slim.symlink_to("libfoo.so.1")
    name = layout / "site/app/lib/libfoo.so.1"
    assert replaced(layout, layout / "load", name) == [f"original 7 {name} {name} 11"]
    slim.unlink()
    os.mkfifo(slim)
    assert replaced(layout, layout / "load", name) == [f"original 7 {name} {name} 11"]


def test_mutated_headers_are_refused_or_harmless(layout):
    slim = layout / "slim" / "libfoo.so.1"
    data = slim.read_bytes()
    name = f"{layout}/site/app/lib/libfoo.so.1"
    notes = data.index(b"GNU\0" + bytes.fromhex(BUILD_ID[2:]))
    places = [*range(16, 64, 2), *range(64, 64 + 56 * 2, 8), *range(notes - 12, notes, 4)]
    for at in places:
        slim.write_bytes(data[:at] + b"\xff\xff" + data[at + 2 :])
        done = run(layout, layout / "load", name)
        # The linker may do anything with a wrong entry point or address.
        assert done.returncode in (0, 1, -6, -11), (at, done)
        if done.returncode == 0:
            assert done.stdout.split()[0] in ("original", "replaced")


def test_copies_stay_apart(layout):
    """Two files with the same name and build ID are two objects with their own variables."""
    first, second = layout / "site" / "app" / "lib" / "libfoo.so.1", layout / "site" / "copy" / "lib" / "libfoo.so.1"
    second.parent.mkdir(parents=True)
    second.write_bytes(first.read_bytes())
    done = run(layout, layout / "load", first, second)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["replaced", "original"]
    fact = f"not replaced: {layout}/slim/libfoo.so.1 stands for another file of this name"
    assert done.stderr == f"gpt-hook: warning: {second}: {fact}\n"
    # A folder that has a file for each.
    data = (layout / "slim" / "libfoo.so.1").read_bytes()
    for copy in ("app", "copy"):
        (layout / "tree" / copy / "lib").mkdir(parents=True)
        (layout / "tree" / copy / "lib" / "libfoo.so.1").write_bytes(
            data.replace(b"replaced", f"from-{copy:.<3}"[:8].encode())
        )
    lines = replaced(layout, layout / "load", first, second, slim="tree")
    assert [line.split()[0] for line in lines] == ["from-app", "from-cop"]


def test_files_in_place_of_folders(tmp_path):
    done = run(tmp_path, "true")
    assert done.returncode == 4
    assert done.stderr == f"gpt-hook: error: {tmp_path}/slim: No such file or directory\n"
    (tmp_path / "slim").touch()
    assert (run(tmp_path, "true").returncode, run(tmp_path, "true").stderr) == (
        2,
        f"gpt-hook: error: {tmp_path}/slim: not a folder\n",
    )
    (tmp_path / "slim").unlink()
    (tmp_path / "slim").mkdir()
    assert replaced(tmp_path, "echo", "empty") == ["empty"]


def test_programs_of_musl_are_refused(tmp_path):
    (tmp_path / "slim").mkdir()
    data = (hooked.runtime() / "gpt-hook").read_bytes()
    (tmp_path / "musl").write_bytes(data.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-musl-x86_64.so.1\0\0\0"))
    (tmp_path / "musl").chmod(0o755)
    done = run(tmp_path, tmp_path / "musl")
    fact = "a program linked to musl: it cannot be watched"
    assert (done.returncode, done.stderr) == (4, f"gpt-hook: error: {tmp_path}/musl: {fact}\n")


def test_check_tries_it(tmp_path):
    done = subprocess.run(hooked.command("check"), capture_output=True, text=True, check=False)
    assert "\nreplace      works" in done.stdout and done.stderr == ""


# What it costs


@pytest.mark.full
def test_symbols_are_bound_lazily_at_equal_cost(tmp_path):
    (tmp_path / "slim").mkdir()
    (tmp_path / "slim" / "unused.so").touch()
    source = "int nothing(void); void lazy(void) { nothing(); }  int step(int i) { return i + 1; }"
    library = compile_library(tmp_path / "libstep.so", source, "-Wl,-z,lazy")
    (tmp_path / "main.c").write_text(
        r"""
        #include <stdio.h>
        #include <time.h>
        int step(int);
        int main(void) {
            int sum = step(0); // bound
            struct timespec start, end;
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
            for (int i = 0; i < 20000000; i++)
                sum = step(sum);
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
            printf("%g\n", (end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) / 1e9);
            return sum != 20000001;
        }
        """
    )
    flags = ["-Wl,-z,lazy", "-Wl,--unresolved-symbols=ignore-all", f"-Wl,-rpath,{tmp_path}"]
    cuda.c_compiler(tmp_path / "main.c", library, "-o", tmp_path / "main", *flags)
    bare, audited = [], []
    for _ in range(5):
        done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
        bare.append(float(done.stdout))
        # A missing function is only noticed when it's called: nothing here is bound early.
        audited.append(float(replaced(tmp_path, tmp_path / "main")[0]))
    assert min(audited) < 1.5 * min(bare), (audited, bare)


def test_it_starts_soon(tmp_path):
    (tmp_path / "slim").mkdir()
    for i in range(200):
        (tmp_path / "slim" / f"lib{i}.so").touch()

    def spent(options):
        start = time.clock_gettime(time.CLOCK_MONOTONIC), os.times()
        for _ in range(20):
            assert hooked.run(tmp_path / "t.mp", "true", options=options).returncode == 0
        end = os.times()
        return (end.children_user + end.children_system - start[1].children_user - start[1].children_system) / 20

    assert spent(["--replace", tmp_path / "slim"]) - spent([]) < 0.02


# With the rest of the hook


@pytest.mark.full
def test_trace_names_the_loaded_file(tmp_path, monkeypatch):
    folder = tmp_path / "demo"
    library = build(folder)
    tools = {"PYTHONPATH": str(hooked.ROOT), "PATH": f"{hooked.ROOT}/.venv/bin:{os.environ['PATH']}"}
    env = os.environ | tools
    run_demo = [folder / "main", "fill"]
    hooked.run(tmp_path / "first.mp", *run_demo, env=env)
    script = (
        f"gpt-extract {library} | gpt-locate --used {tmp_path}/first.mp | gpt-patch -o {tmp_path}/slim --mode compact"
    )
    subprocess.run(["bash", "-o", "pipefail", "-c", script], env=env, check=True, capture_output=True)
    slim = tmp_path / "slim" / "libdemo.so"
    assert slim.stat().st_size < library.stat().st_size

    hooked.run(tmp_path / "second.mp", *run_demo, env=env, options=["--replace", tmp_path / "slim"])
    first, second = Trace(tmp_path / "first.mp"), Trace(tmp_path / "second.mp")
    assert first.functions == second.functions and first.launches == second.launches
    (found,) = [r for r in second.of("library") if r["path"].endswith("/libdemo.so")]
    (before,) = [r for r in first.of("library") if r["path"].endswith("/libdemo.so")]
    assert (found["path"], found["replaces"], found["size"]) == (str(slim), str(library), slim.stat().st_size)
    assert found["build_id"] == before["build_id"] and found["gpu"] <= before["gpu"]
    assert not any("replaces" in r for r in second.of("library") if r is not found)
    (module,) = second.of("module")
    assert module["path"] == str(slim)
    assert slim.read_bytes()[module["offset"] :][:4] == b"\x50\xed\x55\xba"


@pytest.mark.full
def test_a_library_in_many_pieces(sample, tmp_path):
    """gpt-patch has left the maximum number of names in it."""
    library = shutil.copy(sample("pieces"), tmp_path / "libpieces.so")
    (tmp_path / "names").touch()
    found = tool("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=extract("--scan", library).out)
    record = patch(found.out, "-o", tmp_path / "slim")
    assert record["mode"] == "compact"
    assert record["size_after"] < record["size_before"] - 600 * 4096
    with open(record["output"], "rb") as file:
        tables = ELFFile(file)
        assert tables.num_segments() > 600 and tables.num_sections() > 600
    code = "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); print(ctypes.CDLL(sys.argv[1]).answer())"
    done = hooked.run(tmp_path / "t.mp", sys.executable, "-c", code, library, options=["--replace", tmp_path / "slim"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
    (loaded,) = [r for r in Trace(tmp_path / "t.mp").of("library") if r["path"] == record["output"]]
    assert loaded["gpu"] > 0


@pytest.mark.full
def test_a_library_from_pypi(tmp_path):
    library = fetch(PACKAGES["curand"])
    record = patch(located(library, "nothing", arch="sm_90"), "-o", tmp_path / "slim")
    assert record["mode"] == "compact" and record["size_after"] < record["size_before"]
    code = f"""
import ctypes
library = ctypes.CDLL({str(library)!r})
version = ctypes.c_int()
print(library.curandGetVersion(ctypes.byref(version)), version.value)
print(sorted({{line.split()[-1] for line in open("/proc/self/maps") if "curand" in line}}))
"""
    lines = replaced(tmp_path, sys.executable, "-c", code)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert plain == [lines[0], str([str(library.resolve())])]
    assert lines == [plain[0], str([str(tmp_path / "slim" / library.name)])] and lines[0].startswith("0 ")
