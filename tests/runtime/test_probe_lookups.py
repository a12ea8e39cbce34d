"""gpt-hook -p: waiting lookups, requests, and large images. On the simulated device."""

import os
import re
import signal
import subprocess
import time

import pytest

from gpt.formats.fatbin import ELEMENT, MAGIC, REGION, dead_element
from gpt.formats.fatbinwrite import Payload, pack_fatbin
from gpt.stream.reasons import TABLE
from tests import loaded
from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, by_warp, check_bytes, good, in_both_forms, probed, unprobed

PIPELINE = "gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH"
LARGE = 70 << 20  # bytes, more than a record holds

# A program that loads a fatbin from the mapping of its file, or from a copy, and looks up its kernel.
MAPPED = (
    CLIENT
    + r"""
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
int main(int argc, char **argv) {
    struct stat status;
    int file = open(argv[1], O_RDONLY);
    setup(argv[2]);
    OK(D(cuModuleUnload)(module));
    assert(!fstat(file, &status));
    char *image = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (!strcmp(argv[3], "copy")) {
        char *copy = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(copy, image, status.st_size);
        OK(cuModuleLoadData(&module, copy));
        memset(copy, 0, status.st_size);
        for (int i = 600; i < 900; i++) // as programs do that become daemons
            close(i);
    } else if (!strcmp(argv[3], "path")) {
        OK(D(cuModuleLoad)(&module, argv[1]));
    } else {
        OK(cuModuleLoadData(&module, image));
    }
    if (!strcmp(argv[3], "replaced")) {
        assert(!rename(argv[1], argv[4]));
        close(open(argv[1], O_CREAT | O_WRONLY, 0600));
    }
    OK(cuModuleGetFunction(&function, module, "scale"));
    run();
    check();
    return 0;
}
"""
)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    return build(folder, MAPPED)


@pytest.fixture
def large(tmp_path):
    """Return a fatbin with the PTX and an element that's too large for a record; nearly all of the
    element is a hole.
    """
    whole = pack_fatbin([Payload("ptx", "sm_70", PTX.read_bytes())], "none")
    hole = dead_element(whole[REGION.size : REGION.size + ELEMENT.size], LARGE)
    path = tmp_path / "large.fatbin"
    with path.open("wb") as file:
        file.write(REGION.pack(MAGIC, 1, REGION.size, len(whole) - REGION.size + LARGE) + whole[REGION.size :] + hole)
        file.truncate(len(whole) + LARGE)
    return path


@pytest.mark.parametrize("way", ["mapping", *(pytest.param(way, marks=pytest.mark.full) for way in ("copy", "path"))])
def test_an_image_larger_than_a_record(tmp_path, mapped, large, way):
    trace = good(tmp_path, mapped, "-p", "gmem_bytes", arguments=(large, PTX, way))
    check_bytes(trace, 1)


@pytest.mark.full
def test_replaced_file_is_not_used(tmp_path, mapped, large):
    trace = good(tmp_path, mapped, "-p", "gmem_bytes", arguments=(large, PTX, "replaced", tmp_path / "old"))
    assert unprobed(trace) == {"its file was changed since it was loaded": 1}


THREADS = (
    CLIENT
    + r"""
static pthread_barrier_t barrier;
static void *work(void *context) {
    void *mine;
    OK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&barrier);
    OK(cuModuleGetFunction(&mine, module, "scale"));
    assert(mine == function || !function);
    return mine;
}
int main(int argc, char **argv) {
    pthread_t threads[6];
    void *context;
    begin();
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    OK(cuModuleLoadData(&module, text));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_barrier_init(&barrier, NULL, 6);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, work, context);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], &function);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%f\n", end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) / 1e9);
    OK(D(cuMemAlloc_v2)(&items, (size_t)sizeof(want)));
    OK(D(cuMemcpyHtoD_v2)(items, want, sizeof(want)));
    run(), check();
    return 0;
}
"""
)


@pytest.mark.full
def test_threads_that_look_up_a_kernel_at_once_ask_once(tmp_path):
    log = tmp_path / "log"
    trace = good(tmp_path, build(tmp_path, "#include <time.h>\n" + THREADS), "--jit", f"tee '{log}' | {PIPELINE}")
    check_bytes(trace, 1)
    assert log.read_bytes().count(b"\xa4kind\xa6module") == 1


FUNCTION = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    void *library, *kernel;
    setup(argv[1]);
    FILE *file = fopen(argv[1], "r");
    assert(fread(text, 1, sizeof(text) - 1, file));
    OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK(D(cuLibraryGetKernel)(&kernel, library, "scale"));
    OK(D(cuKernelGetFunction)(&function, kernel));
    OK(D(cuLibraryGetModule)(&module, library));
    run();
    assert(!mkdir(argv[2], 0700));
    for (int i = 0; i < 100; i++) {
        usleep(100000);
        OK(D(cuCtxSynchronize)());
    }
    run();
    check();
    return 0;
}
"""
)


@pytest.mark.full
def test_a_function_gets_the_probes_of_its_kernel_when_they_come(tmp_path):
    go = tmp_path / "go"
    pipeline = f"while [ ! -e '{go}' ]; do sleep 0.05; done; {PIPELINE}"
    program = build(tmp_path, "#include <sys/stat.h>\n" + FUNCTION)
    trace = good(tmp_path, program, "--wait", "0", "--jit", pipeline, arguments=(PTX, go))
    check_bytes(trace, 1)
    assert unprobed(trace) == {"it was not looked up by name, or is still being compiled": 1}


# The handler leaves the look-up with a jump the first time; then the program continues.
HANDLER = (
    CLIENT
    + r"""
#include <setjmp.h>
#include <signal.h>
static sigjmp_buf out;
static void leave(int signal) { siglongjmp(out, 1); }
int main(int argc, char **argv) {
    signal(SIGUSR1, leave);
    if (!sigsetjmp(out, 1)) {
        puts("ready"), fflush(stdout);
        setup(argv[1]);
    }
    if (argc > 2) { // once more, and it is made
        assert(!mkdir(argv[2], 0700));
        setup(argv[1]);
        run(), check();
    }
    return 0;
}
"""
)


def interrupted(folder, number, pipeline, *arguments):
    """Run a program that gets a signal while it waits for a kernel; return how long it took to end."""
    program = build(folder, "#include <sys/stat.h>\n" + HANDLER)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(folder / "cache")}
    line = hooked.command("run", "-o", folder / "t.mp", "--device", "sim", "--jit", pipeline, program, PTX, *arguments)
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        hooked.wait_until(lambda: (folder / "asked").exists())
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(number)
        return process.wait(60), time.monotonic() - start


@in_both_forms
def test_a_look_up_can_be_interrupted(tmp_path):
    status, seconds = interrupted(tmp_path, signal.SIGINT, f"touch '{tmp_path}/asked'; exec sleep 1000")
    assert status == -signal.SIGINT
    assert seconds < 10


@pytest.mark.full
def test_a_handler_may_leave_a_look_up(tmp_path):
    go, asked = tmp_path / "go", tmp_path / "asked"
    pipeline = f"touch '{asked}'; while [ ! -e '{go}' ]; do sleep 0.05; done; {PIPELINE}"
    status, seconds = interrupted(tmp_path, signal.SIGUSR1, pipeline, go)
    assert status == 0 and seconds < 20
    check_bytes(hooked.Trace(tmp_path / "t.mp"), 1)


@pytest.mark.full
def test_a_burst_waits_together(tmp_path):
    """Six threads wait for a kernel that's never ready. Together they wait no longer than one would."""
    program = build(tmp_path, "#include <time.h>\n" + THREADS)
    done, trace = probed(tmp_path, program, "--wait", "1.5", "--jit", "exec sleep 1000")
    assert done.returncode == 0
    assert 1.4 < float(done.stdout) < 4
    assert unprobed(trace) == {"it was not looked up by name, or is still being compiled": 1}


@pytest.mark.full
def test_all_is_kept_whatever_the_cache_has(tmp_path, mapped, large, monkeypatch):
    """With GPT_KEEP all of a large image is kept, too; without it, the stages get only what the kernel needs."""
    for folder in ("first", "kept"):
        monkeypatch.setenv("GPT_KEEP", folder)
        monkeypatch.chdir(tmp_path)
        check_bytes(good(tmp_path, mapped, "-p", "gmem_bytes", arguments=(large, PTX, "mapping")), 1)
        kernel = next(path for path in (tmp_path / folder).iterdir() if path.name.startswith("scale."))
        assert (kernel / "original.ptx").read_bytes() == PTX.read_bytes().rstrip(b"\0")
        assert {path.name for path in kernel.iterdir()} >= {"pruned.ptx", "probed.ptx", "probes.diff"}


@pytest.mark.full
def test_another_ptxas_makes_other_results(tmp_path, mapped, large):
    """Results are cached separately for each version of the tools, which gpt-asm --tools lists."""
    log, tool, first = (tmp_path / name for name in ("log", "ptxas", "first"))
    first.write_text(f"#!/bin/sh\necho run >>'{log}'\nexec gpt-extract --ptx\n")
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path / "cache"), "GPT_PTXAS": str(tool)}
    options = ("-f", "--jit", f"'{first}' | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH")
    counts = []
    for text in ("#!/bin/sh\n", "#!/bin/sh\n", "#!/bin/sh\n# newer\n"):
        for path in (tool, first):
            path.write_text(text if path == tool else path.read_text())
            os.utime(path, ns=(0, 0))
            path.chmod(0o755)
        done = hooked.run(tmp_path / "t.mp", mapped, large, PTX, "mapping", options=options, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        counts.append(len(log.read_text().splitlines()))
    assert counts[0] == counts[1] < counts[2]


LINKED = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    void *state, *image;
    size_t size;
    setup(argv[1]);
    FILE *file = fopen(argv[1], "r");
    assert(fread(text, 1, sizeof(text) - 1, file));
    OK(D(cuLinkCreate_v2)(0, NULL, NULL, &state));
    if (argv[2][0] == 'f')
        OK(D(cuLinkAddFile_v2)(state, 1, argv[1], 0, NULL, NULL));
    else
        OK(D(cuLinkAddData_v2)(state, 1, text, strlen(text) + 1, "a", 0, NULL, NULL));
    if (argv[2][0] == 's')
        OK(D(cuLinkAddData_v2)(state, 1, argv[3], strlen(argv[3]) + 1, "b", 0, NULL, NULL));
    OK(D(cuLinkComplete)(state, &image, &size));
    char *copy = malloc(size);
    memcpy(copy, image, size);
    OK(D(cuLinkDestroy)(state));
    memset(text, 0, sizeof(text));
    OK(cuModuleLoadData(&module, copy));
    free(copy);
    OK(cuModuleGetFunction(&function, module, "scale"));
    run(), check();
    return 0;
}
"""
)


@pytest.mark.full
@pytest.mark.parametrize("way", ["data", "file", "several"])
def test_a_linked_module_is_woven_from_its_ptx(tmp_path, way, monkeypatch):
    """If one module was linked, the pipeline gets its own text. If several were, it gets the text into which the
    simulated driver linked them.
    """
    monkeypatch.setenv("GPT_KEEP", str(tmp_path / "kept"))
    more = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry more() { ret; }\n"
    check_bytes(good(tmp_path, build(tmp_path, LINKED), "-p", "gmem_bytes", arguments=(PTX, way, more)), 1)
    (kept,) = (tmp_path / "kept").glob("scale.*/original.ptx")  # from the second look-up
    assert (kept.read_bytes() == PTX.read_bytes().rstrip(b"\0")) == (way != "several")


@pytest.mark.full
def test_the_end_says_what_was_covered(tmp_path):
    """The last lines have the share of probed launches, their share of the simulated GPU's time, the reason for the
    others, and a remedy.
    """
    source = CLIENT + (
        "int main(int argc, char **argv) { setup(argv[1]); void *params[] = {&items, &added, &count};"
        " run(), run();"
        " for (int i = 0; i < 3; i++) {"
        "     OK(cuLaunchKernel(function, 3000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));"
        "     expect(3);"
        " } check(); return 0; }"
    )
    program = build(tmp_path, source)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path)}
    line = [*hooked.command("run", quiet=False), "-o", tmp_path / "t.mp", "--device", "sim", "--gpu-time"]
    line += ["-p", by_warp(), "--max-memory", "500K", program, PTX]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=True)
    _, covered, way = done.stderr.splitlines()
    reason, advice = TABLE["buffers_over_limit"]
    time = r"\([\d.,]+ ms on the GPU, [\d.]+ %\)"
    why = rf"{reason} \(3, [\d.]+ %\)"
    assert re.fullmatch(rf"gpt-hook: 2 launches with probes {time}, 3 without {time}: {why}", covered)
    assert way == f"gpt-hook: {reason}: {advice}"
    summary = loaded.run(["gpt-analyze", "summary", tmp_path / "t.mp"], text=True, check=True)
    text = " ".join(summary.stdout.split())
    assert f"{reason}: {advice}" in text
    assert re.search(f"2 launches ran with probes {time}, 3 without {time}", text), text


def test_left_out_launches_add_no_time(tmp_path):
    """Launches that -k leaves out aren't among those without probes, and neither is their time."""
    source = CLIENT + (
        "int main(int argc, char **argv) { setup(argv[1]); run();"
        ' void *other; OK(cuModuleLoadData(&other, ".version 7.0\\n.target sm_70\\n.address_size 64\\n'
        '.visible .entry other(){ret;}\\n")); OK(cuModuleGetFunction(&other, other, "other"));'
        " OK(cuLaunchKernel(other, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); check(); return 0; }"
    )
    program = build(tmp_path, source)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path)}
    line = [*hooked.command("run", quiet=False), "-o", tmp_path / "t.mp", "--device", "sim", "--gpu-time"]
    line += ["-p", by_warp(), "-k", "scale", program, PTX]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=True)
    time = r"\([\d.]+ ms on the GPU, 100.0 %\)"
    covered = rf"gpt-hook: 1 launch with probes {time}, 0 without \(0.00 ms on the GPU, 0.0 %\)"
    assert re.fullmatch(covered, done.stderr.splitlines()[1]), done.stderr
