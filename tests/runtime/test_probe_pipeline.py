"""gpt-hook -p: the pipeline decides what can be probed. The hook hands over images, whatever is in them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.formats.fatbinwrite import Payload, pack_fatbin
from gpt.probe.read.load import find_probe
from gpt.sass.arch import ARCHS
from gpt.stream.reasons import find_reason
from tests import cuda
from tests.runtime import hooked
from tests.runtime.probing import PTX

TOY = Path(__file__).with_name("toy_stage.py")
WEAVE = "gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH"

# Maps each file, loads its contents, looks up two kernels in turn, and launches each twice.
PROGRAM = r"""
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
static CUdeviceptr items;
static unsigned added = 5, count = 10;
int main(int argc, char **argv) {
    begin();
    OK(D(cuMemAlloc_v2)(&items, (size_t)64));
    for (int i = 1; i < argc; i++) {
        struct stat status;
        void *module, *function, *params[] = {&items, &added, &count};
        int file = open(argv[i], O_RDONLY);
        assert(!fstat(file, &status));
        void *image = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        assert(image != MAP_FAILED);
        if (getenv("UNLINK"))
            assert(!unlink(argv[i]));
        OK(cuModuleLoadData(&module, image));
        if (getenv("TOUCH"))
            assert(!futimens(file, (struct timespec[]){{1, 0}, {1, 0}}));
        if (getenv("REMOVE"))
            assert(!unlink(argv[i]));
        const char *names[] = {"scale", "other"};
        for (int k = 0; k < 2; k++) {
            OK(cuModuleGetFunction(&function, module, names[k]));
            for (int n = 0; n < 2; n++)
                OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        }
    }
    OK(D(cuCtxSynchronize)());
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    from tests.runtime.probing import build

    return build(tmp_path_factory.mktemp("program"), PROGRAM)


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    """Return the kernels of probing.ptx as machine code."""
    made = tmp_path_factory.mktemp("cubin") / "scale.cubin"
    cuda.run("ptxas", "-arch=sm_90", PTX, "-o", made)
    return made


def run(folder, program, *files, options=(), more=None):
    """Run the program on files; returns its trace and the modules that the pipeline got. It runs no kernel."""
    log = folder / "log"
    log.write_bytes(b"")
    env = os.environ | {"GPT_SIM_RUN": "none", "XDG_CACHE_HOME": str(folder / "cache")} | (more or {})
    done = hooked.run(folder / "t.mp", program, *files, options=("-f", *options), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return hooked.Trace(folder / "t.mp"), log.read_bytes().count(b"\xa4kind\xa6module")


def line(folder, stages):
    """Return a pipeline that logs its requests."""
    return "--jit", f"tee -a {shlex.quote(str(folder / 'log'))} | {stages}"


def unprobed(trace):
    """Return launches without probes by name and code."""
    names = {r["id"]: r["name"] for r in trace.of("function")}
    found = {}
    for record in trace.of("unprobed"):
        key = names[record["function"]], find_reason(record).code
        found[key] = found.get(key, 0) + record["launches"]
    return found


def probed(trace):
    """Return the maps' names of launches with probes."""
    maps = {r["id"]: r["name"] for r in trace.of("map")}
    return [maps[r["map"]] for r in trace.of("buffer")]


PLAIN = {("scale", "no_ptx"): 2, ("other", "no_ptx"): 2}


@pytest.mark.full
def test_a_stage_for_machine_code_joins_the_line(tmp_path, program, cubin):
    """A kernel without PTX is launched with the toy stage's parameter; one with PTX goes to the next stage."""
    toy = f"gpt-extract --ptx --payload | {shlex.quote(sys.executable)} {shlex.quote(str(TOY))} | {WEAVE}"
    fatbin = tmp_path / "both.fatbin"
    images = [("cubin", "sm_80", b"no cubin" * 8), ("cubin", "sm_90", cubin.read_bytes())]
    fatbin.write_bytes(pack_fatbin([Payload(*image) for image in images], "none"))
    trace, asked = run(tmp_path, program, cubin, fatbin, PTX, options=line(tmp_path, toy))
    assert unprobed(trace) == {("other", "toy"): 4, ("other", "no_place"): 2}
    assert sorted(probed(trace)) == ["gmem_bytes"] * 2 + ["toy"] * 4
    assert asked == 6
    made = {r["name"]: r["params"] for r in trace.of("kernel") if "params" in r}
    assert [(p["offset"], p["size"]) for p in made["scale"]] == [(0, 8), (8, 4), (12, 4)]


def test_kernels_without_ptx_get_probes(tmp_path, program, cubin):
    """gpt-sass-probe weaves one kernel, gpt-ptx-probe the other; the hook passes the parameter that each adds."""
    stages = f"gpt-extract --ptx --payload | gpt-sass-probe -p gmem_bytes | {WEAVE}"
    trace, _ = run(tmp_path, program, cubin, PTX, options=line(tmp_path, stages))
    assert probed(trace) == ["gmem_bytes"] * 4
    assert set(unprobed(trace)) == {("other", "no_place")}
    params = [[p["offset"] for p in r["params"]] for r in trace.of("kernel") if r["name"] == "scale" and "params" in r]
    assert params == [[0, 8, 12]] * 2


@pytest.fixture(scope="module")
def default_line(tmp_path_factory, program):
    """Return the pipeline of `gpt-hook run -p gmem_bytes`: a launcher, and a stage that prints its arguments."""
    folder = tmp_path_factory.mktemp("launcher")
    launcher, stage = folder / "gpt-hook", folder / "gpt-extract"
    shutil.copy(hooked.runtime() / "gpt-hook", launcher)
    real = shlex.quote(str(hooked.ROOT / "bin" / "gpt-extract"))
    stage.write_text(f'#!/bin/sh\ncat /proc/$PPID/cmdline >{folder}/words\nexec {real} "$@"\n')
    stage.chmod(0o755)
    env = os.environ | {
        "GPT_SIM_RUN": "none",
        "GPT_RUNTIME": str(hooked.runtime()),
        "PATH": f"{hooked.ROOT / 'bin'}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder),
    }
    command = [launcher, "run", "--device", "sim", "-q", "-o", folder / "t.mp", "-p", "gmem_bytes", "--", program, PTX]
    subprocess.run(command, env=env, check=True, timeout=300)
    return (folder / "words").read_bytes().rstrip(b"\0").split(b"\0")[-1].decode()


def test_the_default_line_weaves_machine_code_on_a_proven_device(tmp_path, program, cubin, default_line):
    """On a GPU, kernels without PTX get probes, too. The simulated device runs no machine code, so
    none is requested.
    """
    names = [f"GPT_ARCH={arch}\n{default_line}" for arch in ("sm_90", "host", "sm_80")]
    trace, _ = run(tmp_path, program, cubin, PTX, options=line(tmp_path, f"{{\n{names[0]}\n}}"))
    assert probed(trace) == ["gmem_bytes"] * 4
    assert set(unprobed(trace)) == {("other", "no_place")}
    for name in names[1:]:
        trace, asked = run(tmp_path, program, cubin, options=line(tmp_path, f"{{\n{name}\n}}"))
        assert (unprobed(trace), asked) == (PLAIN, 1)


@pytest.mark.full
def test_probe_files_are_read_once(tmp_path, cold):
    """Cached probes are used without starting Python, unless a file has changed or a callback is a file."""
    launcher, reader, probe, log = (tmp_path / name for name in ("gpt-hook", "gpt-ptx-probe", "mine.toml", "log"))
    shutil.copy(hooked.runtime() / "gpt-hook", launcher)
    reader.write_text(f'#!/bin/sh\necho "$*" >>{log}\nexec {shlex.quote(shutil.which("gpt-ptx-probe"))} "$@"\n')
    reader.chmod(0o755)
    mine = find_probe("gmem_bytes").read_text()
    probe.write_text(mine)
    env = os.environ | {"GPT_RUNTIME": str(hooked.runtime()), "XDG_CACHE_HOME": str(tmp_path)}
    words = [part for name in ("block_sched", probe) for part in ("-p", name)]

    def read(asked, said=""):
        log.write_text("")
        command = [launcher, "run", "-qf", "--device", "sim", "-o", tmp_path / "t.mp", *words, "--", "true"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert (done.returncode != 0, said in done.stderr) == (bool(said), True), done.stderr
        assert log.read_text().count("\n") == asked

    read(1)
    read(0)
    probe.write_text(mine + "# changed\n")
    read(1)
    probe.write_text("nothing")
    read(1, said="mine.toml")
    probe.write_text(mine)
    read(0)
    probe.write_text(f'callback = "calls.py"\n{mine}'.replace('callback = "gmem_bytes"\n', ""))
    read(1, said="calls.py: no such callback")
    (tmp_path / "calls.py").write_text("")
    read(1)
    (tmp_path / "calls.py").unlink()
    read(1, said="calls.py: no such callback")


def test_the_launcher_knows_the_proven_architectures():
    text = (hooked.ROOT / "runtime" / "launcher" / "probe.c").read_text()
    found = re.search(r'#define SASS_ARCHS "(.*)"', text)
    assert found
    assert found[1].split("|") == [name for name, arch in ARCHS.items() if arch.proven]


@pytest.mark.full
def test_one_answer_for_an_image_without_ptx(tmp_path, program, cubin):
    """The pipeline is asked only about the first kernel, once for all processes. After that, the answer is in the
    cache.
    """
    options = line(tmp_path, f"gpt-extract --ptx | {WEAVE}")
    for asked in (1, 0):
        trace, found = run(tmp_path, program, cubin, options=options)
        assert (unprobed(trace), found) == (PLAIN, asked)


@pytest.mark.parametrize(
    ("way", "code"),
    [("UNLINK", "no_ptx"), ("REMOVE", "no_ptx"), ("TOUCH", "file_changed")],
    ids=["gone before the load", "gone after the load", "written to after the load"],
)
def test_image_with_changing_file(tmp_path, program, cubin, way, code):
    """An image can be handed over while it's mapped from the file that it was in."""
    file = tmp_path / "scale.cubin"
    file.write_bytes(cubin.read_bytes())
    trace, _ = run(tmp_path, program, file, options=line(tmp_path, f"gpt-extract --ptx | {WEAVE}"), more={way: "1"})
    assert unprobed(trace) == {("scale", code): 2, ("other", code): 2}


def test_a_closed_library_is_never_handed_over(tmp_path, program):
    """A file with a closed library's name is never passed to the pipeline, whatever it contains. Under another name,
    it's an image like any other.
    """
    ptx = [Payload("ptx", "sm_80", PTX.read_bytes())]
    files = [tmp_path / "libcublasLt.so.13", tmp_path / "mylibcublas.so"]
    for file in files:
        file.write_bytes(pack_fatbin(ptx, "none"))
    trace, asked = run(tmp_path, program, *files, options=line(tmp_path, f"gpt-extract --ptx | {WEAVE}"))
    assert unprobed(trace) == {("scale", "closed_library"): 2, ("other", "closed_library"): 2, ("other", "no_place"): 2}
    assert (probed(trace), asked) == (["gmem_bytes"] * 2, 2)


def test_stages_pass_records_they_do_not_know(tmp_path, program, cubin):
    """Without a stage for machine code, its bytes come back, which the hook ignores."""
    stages = f"gpt-extract --ptx --payload | {WEAVE}"
    trace, _ = run(tmp_path, program, cubin, options=line(tmp_path, stages))
    assert unprobed(trace) == {("scale", "pipeline_empty"): 2, ("other", "pipeline_empty"): 2}


@pytest.mark.full
def test_odd_images(tmp_path, program, cubin):
    """The driver loads these images although they're damaged or contain additional data."""
    good = pack_fatbin([Payload("cubin", "sm_90", cubin.read_bytes()), Payload("ltoir", "sm_90", b"LTO" * 99)], "none")
    torn = bytearray(pack_fatbin([Payload("cubin", "sm_90", cubin.read_bytes())] * 2, "none"))
    torn[-len(cubin.read_bytes()) - 60] = 1  # the second image's header claims to be 1 byte long
    files = [tmp_path / "lto.fatbin", tmp_path / "torn.fatbin"]
    for file, image in zip(files, (good, torn), strict=True):
        file.write_bytes(image)
    trace, asked = run(tmp_path, program, *files, options=line(tmp_path, f"gpt-extract --ptx | {WEAVE}"))
    unreadable = {("scale", "image_unreadable"): 2, ("other", "image_unreadable"): 2}
    assert (unprobed(trace), asked) == (PLAIN | unreadable, 2)
