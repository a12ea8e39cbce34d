"""The commands of Neutrino's notebooks, unchanged, on the simulated device."""

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpt.analyze.dmat import Dmat
from gpt.compat.neutrino.command import PACKAGE, TOOLS
from tests.runtime import hooked
from tests.tiers import first
from tests.trace import folders

PROGRAM = Path(__file__).with_name("program.py")
SUM = "gmem_bytes:{}\n"
BOTH = SUM.format(2 * 96 * 4) + SUM.format(2 * 96 * 8)  # `distribution` only writes


def environment(**more):
    """Return an environment with commands as in an installation, and the simulated device for programs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"GPT_DEVICE": "sim", "GPT_SIM_RUN": "all", "PATH": path} | more


def run(folder, *words, **more):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "check": False, "text": True, "timeout": 300}
    return subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment(TMPDIR=str(folder)), **pipes | more
    )


def events(folder):
    return (folder / "event.log").read_text().splitlines()


def test_a_first_run(tmp_path):
    """Run section 7 of the dynamic notebook: the files and their contents. The exit status is the program's."""
    (tmp_path / "block_sched").mkdir()
    (tmp_path / "block_sched" / "raw.py").symlink_to(PROGRAM)
    program = ["python", "block_sched/raw.py", "status=7"]
    done = run(tmp_path, "neutrino", "-p", "block_sched", "--tracedir", "block_sched", *program)
    assert done.returncode == 7
    first, *hooks = done.stdout.splitlines()
    assert first == "max memory: 2048"
    assert len(hooks) == 2 and all(
        re.fullmatch(r"No\.block:2 Running:\d+ Scheduling:\d+\(cycle\)", line) for line in hooks
    )
    (name,) = os.listdir(tmp_path / "block_sched/trace")
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d{6}_\d+", name)
    assert done.stderr == f"[info] trace in block_sched/trace/{name}\n"
    folder = tmp_path / done.stderr.strip().split(" ")[-1]
    assert (folder / "probe.toml").read_bytes() == (TOOLS / "block_sched.toml").read_bytes()
    kernels = sorted(os.listdir(folder / "kernel"))
    assert [re.sub("_[0-9a-f]{40}$", "", kernel) for kernel in kernels] == ["0", "1"]
    for kernel, entry in zip(kernels, ("distribution", "attn_fwd"), strict=True):
        files = folder / "kernel" / kernel
        assert set(os.listdir(files)) == {
            "original.bin", "original.ptx", "pruned.ptx", "probed.ptx", "pruned.bin", "probed.bin", "process.log",
            "kernel.info", "read.py",
        }  # fmt: skip
        assert (files / "kernel.info").read_text() == f"{entry}\n2\n1\n1,16\nblock_sched.py\n"
        assert (files / "original.bin").read_bytes().rstrip(b"\0") == (files / "original.ptx").read_bytes()
        assert all((files / f"{what}.bin").read_bytes().startswith(b"\x7fELF") for what in ("pruned", "probed"))
        assert b"distribution" in (files / "pruned.ptx").read_bytes() or entry == "attn_fwd"
        log = (files / "process.log").read_text()
        assert log.startswith(f"['']\n[decompile] via gpt-extract --ptx\n{entry}\n[assemble] via gpt-asm pruned.ptx")
        assert log.count("module.c -o module.so") == 2  # with probes and without
        assert log.endswith((files / "read.py").read_text())
    log = events(folder)
    assert sum(line.startswith("[exec] save ") for line in log) == 2
    assert [line for line in log if line.startswith("[mem] cuMemAlloc_v2 0 dptr 0x")]
    results = sorted((folder / "result").iterdir())
    names = {}
    exec((folder / "kernel" / kernels[0] / "read.py").read_text(), names)
    header, _, records = names["parse"](results[0])
    assert header[:7] == (2, 1, 1, 96, 1, 1, 0) and [len(block) for block in records] == [3, 3]
    hooked.wait_until(lambda: not [*tmp_path.glob("gpt-*")])  # the broker outlives the program by two scans


@pytest.mark.full
def test_the_picture_of_accesses(tmp_path):
    """`!neutrino -t dmat -k attn python dmat/fig1.py`: standard output is the path of a picture."""
    pytest.importorskip("matplotlib")
    done = run(tmp_path, "neutrino", "-t", "dmat", "-k", "attn", "python", PROGRAM, "TensorTrace")
    picture = tmp_path / done.stdout.splitlines()[-1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    folder = tmp_path / done.stderr.strip().split(" ")[-1]
    assert "[count] size: 2" in events(folder)
    assert len(list((folder / "result").glob("*.bin"))) == len(list((folder / "kernel").iterdir())) == 1
    lines = [line.split("  ") for line in (folder / "tensor.trace").read_text().splitlines()]
    assert {tuple(line[5:7]) for line in lines} >= {("out", "forward"), ("q", "forward")}
    assert all(len(line) == 8 and line[0] == "[call]" and line[3] == "1024" for line in lines)
    addresses = {line.split()[4] for line in events(folder) if line.startswith("[mem] cuMemAlloc_v2")}
    assert {f"{int(line[4]):#x}" for line in lines} <= addresses


@pytest.mark.full
def test_kept_share_of_a_log_is_reported_and_drawn(tmp_path):
    """The log has room for some of 384 accesses; the picture's title and gpt-analyze state the same share."""
    pytest.importorskip("matplotlib")
    text = (TOOLS / "dmat.toml").read_text()
    (tmp_path / "dmat.toml").write_text(text.replace("budget = 268435456", "budget = 2560"))
    (tmp_path / "dmat.py").write_text((TOOLS / "dmat.py").read_text().replace(".png", ".svg"))
    done = run(tmp_path, "neutrino", "-p", "./dmat.toml", "-k", "attn", "python", PROGRAM)
    warning, trace = done.stderr.splitlines()
    folder = tmp_path / trace.split(" ")[-1]
    rows, verdicts = folders.answer(Dmat, folder)
    number, dropped = rows["launches"][0]["accesses"], rows["launches"][0]["dropped"]
    share = f"{100 * number / 384:.1f} %"
    assert number and dropped and number + dropped == 384
    assert warning.startswith(
        f"gpt-neutrino: warning: dmat: {share} of 384 records were kept: the log of 1 of 1 launch"
    )
    assert f"incomplete: {share} of 384 accesses were kept" in (tmp_path / done.stdout.splitlines()[-1]).read_text()
    assert verdicts["launches"][0].startswith(f"{share} of 384 records were kept, from block")
    (result,) = (folder / "result").glob("*.bin")
    clocks = {clock for clock, address in struct.iter_unpack("<2Q", result.read_bytes()[48:]) if address}
    assert min(clocks) == 1 and max(clocks) < 1 << 40


@pytest.mark.full
def test_slowdown(tmp_path):
    """The loop over METRICS and COMMANDS uses probe files next to the notebook, and moves the results."""
    for metric in ("block_sched", "gmem_bytes"):
        shutil.copy(TOOLS / f"{metric}.toml", tmp_path)
        test, command = "attn", [sys.executable, str(PROGRAM), "4", "32"]
        os.makedirs(tmp_path / test / metric)
        with open(tmp_path / test / metric / "stdout.log", "w") as file:
            words = [
                "neutrino",
                "--benchmark",
                "-p",
                f"./{metric}.toml",
                "--filter",
                "distribution:copy",
                "-k",
                test,
                *command,
            ]
            res = run(tmp_path, *words, stdout=file, stderr=subprocess.PIPE, text=False)
        tracedir = res.stderr.decode().strip().split(" ")[-1]
        os.rename(tmp_path / tracedir, tmp_path / test / metric / "trace")
        folder = tmp_path / test / metric / "trace"
        log = events(folder)
        (line,) = [line for line in log if line.startswith("[benchmark]")]
        words = line.split()
        assert words[1::2] == ["prologue", "kernel", "epilogue", "original", "impact", "0"]
        assert float(words[10]) == pytest.approx(float(words[4]) / float(words[8]), rel=1e-3)
        assert not list((folder / "result").iterdir()) and len(list((folder / "kernel").iterdir())) == 1
        assert (tmp_path / test / metric / "stdout.log").read_text() == "max memory: 2048\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("test", "needed"), [("block_sched", 6 * 24), ("gmem_bytes", 192 * 16), ("dmat", 2048 + 6 * 128)]
)
def test_memory(tmp_path, test, needed):
    """The loop over MODELS and TESTS prints a line per process that ends with its folder, and takes the `max`."""
    res = run(tmp_path, "neutrino", "-p", test, "--memusage", "python", PROGRAM, "fork", text=False)
    copied = []
    for tracedir in res.stderr.decode().split("\n"):
        if len(tracedir) < 3:
            continue
        tracedir = tracedir.strip().split(" ")[-1]
        copied.append(tmp_path / test / os.path.basename(tracedir))
        shutil.copytree(tmp_path / tracedir, copied[-1])
    assert len(copied) == 2
    original = 0
    for line in res.stdout.decode().split("\n"):
        if line.startswith("max memory:"):
            original = max(original, int(line.strip().split(" ")[-1]))
    assert original == 2048
    for folder in copied:
        found = [int(line.split(" ")[2]) for line in events(folder) if line.startswith("[exec] probe-mem")]
        assert max(found) == needed


@pytest.mark.full
def test_several_processes(tmp_path):
    """Programs that don't use the driver, such as a framework's compilers, get no line."""
    shell = f"/bin/true; python {PROGRAM} fork; /bin/true"
    done = run(tmp_path, "neutrino", "-p", "gmem_bytes", "--trace", "here", "sh", "-c", shell)
    assert (done.returncode, done.stdout.count(SUM.format(768)), done.stdout.count(SUM.format(1536))) == (0, 2, 2)
    folders = [tmp_path / line.split(" ")[-1] for line in done.stderr.splitlines()]
    assert [folder.parent for folder in folders] == [tmp_path / "here"] * 2
    for folder in folders:
        assert events(folder)[0] == f"[pid] {folder.name.split('_')[2]}"
        assert len(list((folder / "result").iterdir())) == 2


@pytest.mark.full
def test_code_that_the_driver_linked(tmp_path):
    """The trace has the digest of the linked code, and the pipeline gets the PTX that it was linked from."""
    done = run(tmp_path, "neutrino", "-p", "gmem_bytes", "python", PROGRAM, "linked")
    assert (done.returncode, done.stdout) == (0, f"max memory: 2048\n{BOTH}")
    folder = tmp_path / done.stderr.split()[-1]
    assert all((kernel / "original.ptx").exists() for kernel in (folder / "kernel").iterdir())


@pytest.mark.full
def test_kernel_without_probe_sites(tmp_path):
    done = run(tmp_path, "gpt-neutrino", "-p", "tensorop_count", "python", PROGRAM)
    assert (done.returncode, done.stdout) == (0, "max memory: 2048\n")
    folder = tmp_path / done.stderr.split()[-1]
    for kernel in (folder / "kernel").iterdir():
        assert "[unprobed] no probe applies to it" in (kernel / "process.log").read_text()
        assert {path.name for path in kernel.iterdir()} == {"original.bin", "original.ptx", "process.log"}
    assert sum(line.startswith("[exec] backup 1 no probe applies to it ") for line in events(folder)) == 2


@pytest.mark.full
def test_hooks(tmp_path):
    """--callback is run instead of the tool's own, by the Python of --python; a failure changes nothing else."""
    (tmp_path / "mine.py").write_text("import neutrino, sys; print(sys.argv[1:]); sys.exit(1)\n")
    shim = tmp_path / "other-python"
    shim.write_text(f'#!/bin/sh\necho shim\nexec {sys.executable} "$@"\n')
    shim.chmod(0o700)
    words = ["-p", "gmem_bytes", "-k", "attn", "--callback", "./mine.py", "--python", shim, "python", PROGRAM]
    done = run(tmp_path, "neutrino", *words)
    said, last = done.stderr.splitlines()
    assert said == f"gpt-neutrino: warning: {tmp_path / 'mine.py'}: ended with status 1"
    (result,) = (tmp_path / last.split(" ")[-1] / "result").iterdir()
    assert done.stdout == f"max memory: 2048\nshim\n['trace/{result.parents[1].name}/result/{result.name}']\n"
    assert done.returncode == 0


@pytest.mark.full
def test_hooks_that_print_megabytes_and_are_killed(tmp_path):
    (tmp_path / "mine.py").write_text("import os\nprint('x' * (30 << 20), flush=True)\nos.kill(os.getpid(), 9)\n")
    done = run(tmp_path, "neutrino", "-p", "gmem_bytes", "--callback", "mine.py", "python", PROGRAM)
    said, last = done.stderr.splitlines()
    assert said == f"gpt-neutrino: warning: {tmp_path / 'mine.py'}: was ended by signal 9 (failed on 2 launches)"
    assert done.returncode == 0 and done.stdout == "max memory: 2048\n" + 2 * f"{'x' * (30 << 20)}\n"
    assert len(list((tmp_path / last.split(" ")[-1] / "result").iterdir())) == 2


@pytest.mark.full
def test_when_it_is_killed_itself(tmp_path):
    """If gpt-neutrino is killed, so is the program, and the folder is completed."""
    words = ["neutrino", "-p", "gmem_bytes", "python", str(PROGRAM), "pause"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == "max memory: 2048\n"
        time.sleep(0.5)
        process.kill()
        out, err = process.communicate(timeout=60)  # all processes that had the pipes have ended
    assert (process.returncode, out) == (-signal.SIGKILL, BOTH)
    assert len(list((tmp_path / err.split()[-1] / "result").iterdir())) == 2


@pytest.mark.full
def test_program_killed(tmp_path):
    done = run(tmp_path, "neutrino", "-p", "gmem_bytes", "python", PROGRAM, "kill")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, f"max memory: 2048\n{BOTH}")
    assert len(done.stderr.splitlines()) == 1
    assert os.path.isdir(tmp_path / done.stderr.split()[-1] / "kernel")


@pytest.mark.full
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupts(tmp_path, which):
    """Ctrl-C goes to all processes of the terminal. It ends the program, and the folder is complete."""
    words = ["neutrino", "-p", "gmem_bytes", "python", str(PROGRAM), "pause"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == "max memory: 2048\n"
        time.sleep(0.5)
        if which == signal.SIGINT:
            os.killpg(process.pid, which)
        else:
            process.send_signal(which)
        out, err = process.communicate(timeout=60)
    assert process.returncode == -which
    assert out == BOTH
    folder = tmp_path / err.split()[-1]
    assert len(list((folder / "result").iterdir())) == 2
    assert err.splitlines()[-1].startswith("[info] trace in ./trace/")


@pytest.mark.full
def test_interrupt_of_hanging_analysis(tmp_path):
    """The program has ended and its folder is complete, so the folder's line is printed."""
    (tmp_path / "hang.py").write_text("import time\nprint('hangs', flush=True)\ntime.sleep(1000)\n")
    words = ["neutrino", "-p", "gmem_bytes", "--callback", "hang.py", "python", str(PROGRAM)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), start_new_session=True, **pipes) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["max memory: 2048\n", "hangs\n"]
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    said, last = err.splitlines()
    assert said == "gpt-neutrino: warning: interrupted; 2 results are not analyzed"
    assert len(list((tmp_path / last.split(" ")[-1] / "result").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "status", "said"),
    first(
        (["python"], 2, "no probe: -p PROBE names one (see gpt-neutrino --help)"),
        (["-p", "dmat"], 2, "no command (see gpt-neutrino --help)"),
        (["-p", "dmat", "--device", "x", "true"], 2, "--device: 'x' is neither real nor sim"),
        (["-p", "dmat", "--benchmark", "--memusage", "true"], 2, "--memusage cannot be combined with --benchmark"),
        (["-p", "dmat", "-t", "block_sched", "true"], 2, "--tool cannot be combined with --probe"),
        (["-p", "dmat", "--tracedir", "a", "--trace", "b", "true"], 2, "--trace cannot be combined with --tracedir"),
        (["-p", "absent", "true"], 4, "absent: no such probe file, and not a tool (bank_conflict, block_sched, "),
        (["-p", "absent", "true"], 4, ", tensorop_count, value_range, warp_progress, warp_ranges, warp_sched)"),
        (["-p", "dmat", "--callback", "absent.py", "true"], 4, "absent.py: no such analyze hook"),
        (["-p", "dmat", "--driver", "absent", "true"], 4, "absent: no such driver"),
        (["-p", "dmat", "--python", "absent", "true"], 4, "absent: no such Python"),
        (["-p", "bad.toml", "true"], 1, "bad.toml:4: probe 'bad': register '%x' is not declared in the probe"),
    ),
)
def test_errors_are_reported_before_anything_runs(tmp_path, words, status, said):
    (tmp_path / "bad.toml").write_text(
        '[bad]\nposition = "kernel"\ndatamodel = "thread:8"\nbefore = "SAVE.u64 {%x};"\n'
    )
    done = run(tmp_path, "gpt-neutrino", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("gpt-neutrino: error: ") and said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


@pytest.mark.full
def test_missing_command(tmp_path):
    done = run(tmp_path, "neutrino", "-p", "dmat", "./absent", "-x")
    assert done.returncode == 127
    assert "absent" in done.stderr


@pytest.mark.full
def test_where_the_package_is(tmp_path):
    """A notebook imports the package itself."""
    assert run(tmp_path, "gpt-neutrino", "--path").stdout == f"{PACKAGE}\n"


@pytest.mark.full
def test_a_driver_of_ones_own(tmp_path):
    driver = PACKAGE.parents[2] / "_runtime" / "sim" / "libcuda.so.1"
    done = run(tmp_path, "neutrino", "-p", "gmem_bytes", "--driver", driver, "python", PROGRAM)
    assert (done.returncode, done.stdout) == (0, f"max memory: 2048\n{BOTH}")
    assert f"[info] dl {driver}" in events(tmp_path / done.stderr.split()[-1])
