"""gpt-hook -p: buffers of any size are written to files and streams exactly as the kernel left them."""

import os
import resource
import subprocess

import numpy as np
import pytest

from tests.runtime import hooked, simulated
from tests.runtime.probing import CLIENT, COUNT, PTX, build, by_warp, good, kept, probe_file, saved

STORES = """
[map.stores]
{how}
level = "thread"
data = {{address = "u64", mixed = "u64"}}

[probe.stores]
position = "st.global"
level = "thread"
before = ".reg .u64 %mixed; mul.lo.u64 %mixed, ADDR, 0x9E3779B97F4A7C15; SAVE [stores] {{ADDR, %mixed}};"
"""
ARRAY, LOG = STORES.format(how="cap = 2"), STORES.format(how='cap = "dynamic"')
THREADS = 160

# Makes launches with as many blocks as the arguments after the module say.
WIDE = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    setup(argv[1]);
    void *params[] = {&items, &added, &count};
    for (int i = 2; i < argc; i++) {
        OK(cuLaunchKernel(function, (unsigned)atoi(argv[i]), 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        expect(3);
    }
    check();
    return 0;
}
"""
)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wide"), WIDE)


def probe(text):
    return probe_file("stores.toml", text)


def live(folder, program, *options, arguments):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    done = hooked.run(f"|cat >'{folder}/t.mp'", program, *arguments, options=options, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return hooked.Trace(folder / "t.mp")


def check_stores(folder, blocks):
    """Check that each thread below COUNT saved what it stored, and that other threads saved nothing."""
    found = saved(folder / "t.mp", "stores")
    assert [units.counts.shape for _, units in sorted(found.items())] == [(n, THREADS) for n in blocks]
    for units in found.values():
        counts = units.counts.ravel()
        assert (counts[:COUNT] == 1).all() and not counts[COUNT:].any()
        addresses = units.slots["address"].reshape(-1, 2)
        assert (np.diff(addresses[:COUNT, 0]) == 4).all() and not addresses[:, 1].any() and not addresses[COUNT:].any()
        assert (units.slots["mixed"] == units.slots["address"] * np.uint64(0x9E3779B97F4A7C15)).all()


def held(trace):
    """Return, for each buffer record, the bytes in the record and the bytes in the file."""
    return [(len(r.get("data", b"")), r.get("packed", 0 if "path" in r else None)) for r in trace.of("buffer")]


@pytest.mark.full
def test_a_live_stream_takes_any_size(tmp_path, wide):
    blocks = (6, 800, 3000, 9000)  # 2, 192, 720 and 2,160 KB
    trace = live(tmp_path, wide, "-p", by_warp(), arguments=(PTX, *map(str, blocks)))
    found = saved(tmp_path / "t.mp", "gmem_bytes")
    assert [units.counts.shape[0] for _, units in sorted(found.items())] == list(blocks)
    for units in found.values():
        assert (units.counts == 32).all() and units.slots["read"].sum() == 8 * COUNT
    assert [len(r["data"]) for r in trace.of("buffer")][:2] == [6 * 5 * 48, 800 * 5 * 48]
    assert all(len(r["data"]) <= 448 << 10 and "path" not in r for r in trace.of("buffer"))


@pytest.mark.full
def test_an_analysis_reads_large_buffers_from_a_pipe(tmp_path, wide):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    line = hooked.command("run", "-o", "-", "--device", "sim", "-p", "gmem_bytes", "--", wide, PTX, "9000", "20")
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE) as run:
        done = subprocess.run(
            ["gpt-analyze", "gmem_bytes"], stdin=run.stdout, capture_output=True, text=True, check=True
        )
        assert run.wait() == 0
    assert f"gmem_bytes:{2 * 16 * COUNT}" in done.stdout


@pytest.mark.parametrize("collect", [pytest.param(good, marks=pytest.mark.full), live])
def test_units_that_saved_nothing_are_left_out(tmp_path, wide, collect):
    """Grids of 1,600, 48,000 and 480,000 threads have 400 threads that save something."""
    blocks = (10, 300, 3000)
    trace = collect(tmp_path, wide, "-p", probe(ARRAY), arguments=(PTX, *map(str, blocks)))
    check_stores(tmp_path, blocks)
    assert sum(r.get("units", 0) for r in trace.of("buffer")) == 3 * COUNT
    size = sum(size for size, _ in held(trace))
    assert size == 3 * COUNT * 48 if collect is live else 2 * size < 3 * COUNT * 48
    assert not (tmp_path / "t.mp.buffers").exists()


@pytest.mark.full
def test_a_log_has_what_was_saved(tmp_path, wide):
    trace = good(tmp_path, wide, "-p", probe(LOG), arguments=(PTX, "10", "300"))
    small, large = (r["size"] for r in trace.of("buffer"))
    assert small == large < 24 * COUNT  # with heads of arenas and rooms, less than entries alone would take
    for units in saved(tmp_path / "t.mp", "stores").values():
        assert units.counts.tolist() == [COUNT] and sorted(units.units.tolist()) == list(range(COUNT))


@pytest.mark.full
def test_large_buffers_are_packed(tmp_path, wide):
    trace = good(tmp_path, wide, "-p", by_warp(), arguments=(PTX, "3000", "90000"))
    buffers = trace.of("buffer")
    assert {r.get("codec") for r in buffers} == {"columns", "columns+zstd"} and len(buffers) == 1 + 6
    assert os.stat(tmp_path / "t.mp.buffers").st_size < sum(r["packed"] + 8 for r in buffers) < 1 << 20
    for units in saved(tmp_path / "t.mp", "gmem_bytes").values():
        assert (units.counts == 32).all() and units.slots["read"].sum() == 8 * COUNT


# Does something to the file next to the trace once it has the buffer of a launch, and launches again.
DISTURBED = (
    "#include <sys/stat.h>\n"
    + CLIENT
    + r"""
int main(int argc, char **argv) {
    const char *path = argv[2];
    struct stat status;
    setup(argv[1]);
    void *params[] = {&items, &added, &count};
    for (int i = 0; i < 2; i++) {
        OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        expect(3);
        OK(D(cuCtxSynchronize)());
        for (int ms = 0; ms < 60000 && !i && (stat(path, &status) || !status.st_size); ms++)
            usleep(1000);
        assert(i || status.st_size);
        usleep(i ? 0 : 200000);
        if (!i) { HOW }
    }
    check();
    return 0;
}
"""
)
GONE = "the file next to the trace was deleted, replaced or cut"


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "error", "lost"),
    [
        ("assert(!unlink(path));", "was deleted; buffers are lost", 2),
        ("assert(!truncate(path, 0));", "was truncated; buffers are lost", 2),
        ("assert(!rename(path, argv[3]) && !symlink(argv[3], path));", None, 2),
        ("setrlimit(RLIMIT_FSIZE, &(struct rlimit){status.st_size, -1});", "File too large; buffers are lost", 1),
    ],
)
def test_the_report_says_what_is_lost_with_the_file_next_to_the_trace(tmp_path, how, error, lost):
    source = "#include <sys/resource.h>\n" + DISTURBED.replace("HOW", how)
    program, out = build(tmp_path, source), tmp_path / "t.mp"
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    options = ("-o", out, "--device", "sim", "-p", by_warp(), "--")
    line = hooked.command("run", *options, program, PTX, f"{out}.buffers", tmp_path / "away", quiet=False)
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    why = GONE if lost == 2 else "the file next to the trace cannot be written"
    said = f"gpt-hook: warning: {'2 launches lost what they' if lost == 2 else '1 launch lost what it'} saved: {why}\n"
    assert said in done.stderr
    assert (f"{out}.buffers: {error}\n" if error else said) in done.stderr
    read = subprocess.run(["gpt-analyze", "gmem_bytes", out], capture_output=True, text=True, check=False)
    assert read.returncode == (1 if lost == 2 else 0) and "lost what " in read.stdout + read.stderr


@pytest.mark.full
def test_files_may_be_smaller_than_libzstd(tmp_path, wide):
    """The copy of libzstd is a file in memory, to which the limit applies, too."""

    def few():
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, -1))

    good(tmp_path, wide, "-p", by_warp(), arguments=(PTX, "6"))
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    options = ("-f", "-p", by_warp())
    done = hooked.run(tmp_path / "t.mp", wide, PTX, "6", options=options, env=env, preexec_fn=few)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(saved(tmp_path / "t.mp", "gmem_bytes")) == 1


def library(folder, text, *flags):
    folder.mkdir()
    flags = ("-shared", "-fPIC", "-Wl,-soname,libzstd.so.1", *flags)
    return hooked.compile_c(folder / "libzstd.so.1", text, *flags, prelude=False)


@pytest.mark.full
@pytest.mark.parametrize("broken", ["empty", "other"])
def test_without_zstd_buffers_are_columns(tmp_path, wide, broken):
    """A file that isn't a library, or another library with that name, isn't used."""
    if broken == "empty":
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libzstd.so.1").touch()
    else:
        library(tmp_path / "lib", "int ZSTD_isError(void) { return 1; }")
    where = f"LD_LIBRARY_PATH={tmp_path}/lib:{hooked.runtime()}/sim"  # for the program, not for the compiler
    trace = good(tmp_path, "env", "-p", by_warp(), arguments=(where, wide, PTX, "3000", "90000"))
    assert {r["codec"] for r in trace.of("buffer")} == {"columns"}
    assert os.stat(tmp_path / "t.mp.buffers").st_size - sum(r["packed"] for r in trace.of("buffer")) in range(8 * 7)
    for units in saved(tmp_path / "t.mp", "gmem_bytes").values():
        assert units.slots["read"].sum() == 8 * COUNT


@pytest.mark.full
def test_the_programs_own_zstd_is_its_own(tmp_path):
    """If the program opens a library that needs a newer zstd, it gets that one, and sees none of our functions."""
    folder = tmp_path / "lib"
    library(folder, "int ZSTD_newer(void) { return 42; } int ZSTD_isError(void) { return 1; }")
    user = "int ZSTD_newer(void); int use(void) { return ZSTD_newer(); }"
    flags = ("-shared", "-fPIC", f"-L{folder}", "-l:libzstd.so.1", "-Wl,-rpath,$ORIGIN")
    hooked.compile_c(folder / "libuser.so", user, *flags, prelude=False)
    body = r"""
    static size_t lines(const char *word) {
        char line[4096];
        size_t found = 0;
        FILE *file = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof(line), file))
            found += strstr(line, word) && strstr(line, "r-xp");
        fclose(file);
        return found;
    }
    int main(int argc, char **argv) {
        setup(argv[1]);
        assert(!dlsym(RTLD_DEFAULT, "ZSTD_compressCCtx"));
        assert(!dlopen("libzstd.so.1", RTLD_NOW | RTLD_NOLOAD));
        assert(lines("memfd:libzstd") == (strcmp(argv[3], "probed") == 0));
        void *user = dlopen(argv[2], RTLD_NOW);
        int (*use)(void) = user ? dlsym(user, "use") : NULL;
        if (!use)
            fprintf(stderr, "%s\n", dlerror());
        assert(use && use() == 42);
        void *params[] = {&items, &added, &count};
        OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        expect(3);
        check();
        return 0;
    }
    """
    program = build(tmp_path, CLIENT + body)
    trace = good(tmp_path, program, "-p", by_warp(), arguments=(PTX, folder / "libuser.so", "probed"))
    assert [r.get("codec") for r in trace.of("buffer")] == ["columns+zstd"]
    assert not [r["path"] for r in trace.of("library") if "memfd" in r["path"] or "/proc/" in r["path"]]
    good(tmp_path, program, arguments=(PTX, folder / "libuser.so", "plain"))


@pytest.mark.full
def test_program_with_static_zstd(tmp_path):
    """The program's functions with these names are visible to all libraries, but aren't used to pack buffers."""
    names = ("ZSTD_isError", "ZSTD_createCCtx", "ZSTD_compressBound", "ZSTD_compress", "HUF_isError", "FSE_isError")
    own = "".join(f"void {name}(void) {{ abort(); }}\n" for name in names)
    program = simulated.build(tmp_path / "client", own + WIDE, "-rdynamic")
    trace = good(tmp_path, program, "-p", by_warp(), arguments=(PTX, "3000"))
    assert [r.get("codec") for r in trace.of("buffer")] == ["columns+zstd"]


# No two threads save the same data: repeated values would be compressed. (Clocks of two blocks may be equal.)
NOISE = '''
[map.noise]
level = "thread"
cap = 1
data = {{{fields}}}

[probe.noise]
position = "kernel"
level = "thread"
before = """.reg .u64 %x, %t, {all}; .reg .u32 %n; mov.u32 %n, %ctaid.x; mad.lo.u32 %n, %n, 256, %tid.x;
cvt.u64.u32 %x, %n; add.u64 %x, %x, 1; {steps} SAVE [noise] {{{all}}};"""
'''
STEP = (
    "shl.b64 %t, %x, 13; xor.b64 %x, %x, %t; shr.b64 %t, %x, 7; xor.b64 %x, %x, %t;"
    " shl.b64 %t, %x, 17; xor.b64 %x, %x, %t; mov.u64 %{name}, %x;"
)


@pytest.mark.full
def test_incompressible_buffers_are_stored_plain(tmp_path, wide):
    names = "abcdefgh"
    text = NOISE.format(
        fields=", ".join(f'{name} = "u64"' for name in names),
        all=", ".join(f"%{name}" for name in names),
        steps="mul.lo.u64 %x, %x, 0x9E3779B97F4A7C15; " + " ".join(STEP.format(name=name) for name in names),
    )
    trace = good(tmp_path, wide, "-p", probe(text), arguments=(PTX, "1000"))
    assert {"codec" in r for r in trace.of("buffer")} == {False}
    (units,) = saved(tmp_path / "t.mp", "noise").values()
    assert (units.counts == 1).all() and len(np.unique(units.slots["h"])) > 1000
