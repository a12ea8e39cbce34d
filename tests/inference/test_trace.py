"""gpt-trace on the two programs in this folder, and on others."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpt.trace
from tests import cuda
from tests.inference import generate

HERE = Path(__file__).parent
TRACE = HERE.parents[1] / "bin" / "gpt-trace"
ENV = {**os.environ, "GPT_SIM_RUN": "all"}
NUMBER = re.compile(r"^(?:  )?([A-Z][A-Za-z ]+?)  +([\d.]+)(ns|us|ms|s)", re.M)
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def run(folder, *command, **options):
    done = subprocess.run([TRACE, *map(str, command)], cwd=folder, env=ENV, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=240, check=False, **options)  # fmt: skip
    assert "internal error" not in done.stderr
    return done


def stages(printed):
    """Return the times in the table of stages, in ns."""
    table = printed.split("\n+ gpt-analyze stages ")[1].split("\n\n")[0]
    return {name: float(number) * UNITS[unit] for name, number, unit in NUMBER.findall(table)}


def recipe(folder, text):
    if not shutil.which("jq"):
        pytest.skip("no jq (Debian: apt-get install jq)")
    command = ["bash", "-o", "pipefail", "-c", text]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout.split()


# The two programs

ALL = {"Initialization", "Weight Loading", "Input Transfer", "Kernel Compile", "Inference", "Per round", "Sync",
       "Output Transfer", "Total"}  # fmt: skip


@pytest.mark.full
def test_a_program_in_c(tmp_path):
    cuda.c_compiler("-o", tmp_path / "vectors", HERE / "vectors.c", "-ldl")
    done = run(tmp_path, "--device", "sim", "--", "./vectors", 20)
    assert done.returncode == 0 and done.stdout.startswith("weights: 524288 bytes\n20 rounds of 64 layers: right\n")
    times = stages(done.stdout)
    assert set(times) >= ALL
    assert sum(times[name] for name in ALL - {"Total", "Per round"}) <= 1.01 * times["Total"]
    launches = recipe(tmp_path, r"""cat traces/trace_*.jsonl | grep -E '^{' | \
        jq -c 'select(.type=="kernel" and .op=="launch") | .kernel' | LC_ALL=C sort | uniq -c""")  # fmt: skip
    assert launches == ["21", '"last"', str(21 * 64), '"layer"']
    assert re.search(r"equal rounds of 65 launches from launch \d+ on \(within each, ", " ".join(done.stdout.split()))
    trace = json.loads(next((tmp_path / "traces").glob("*.json")).read_text())
    names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert names.count("cuLaunchKernel") == 21 * 65
    (lines,) = (tmp_path / "traces").glob("*.jsonl")
    assert {path.stat().st_mode & 0o77 for path in lines.parent.iterdir()} == {0}


@pytest.mark.full
def test_generating_model(tmp_path):
    done = run(tmp_path, "--device", "sim", sys.executable, HERE / "generate.py", "--tokens", 12, "--prompt", "7 8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2] == "tokens: " + " ".join(map(str, expected([7, 8], 12)))
    times = stages(done.stdout)
    assert set(times) >= ALL
    assert times["Per round"] * 12 <= 1.5 * (times["Inference"] + times["Sync"] + times["Output Transfer"])
    assert "equal rounds of 22 launches" in done.stdout
    (lines,) = (tmp_path / "traces").glob("*.jsonl")
    (before,), (after,) = (gpt.trace.open(path).processes for path in (lines.with_suffix(".mp"), lines))
    assert set(before.kernels().values()) == set(after.kernels().values())
    assert before.take_launches() == after.take_launches()


def expected(prompt, count):
    """Return the model's output, computed with numpy."""
    weights = {name: np.array(values, np.float32) for name, values in generate.make_weights().items()}
    words, scores = (weights[name].reshape(-1, generate.WIDTH) for name in ("words", "scores"))
    matrices = {name: weights[name].reshape(generate.MATRICES[name.split(".")[0]]) for name in weights if "." in name}
    cache = [([], []) for _ in range(generate.LAYERS)]
    found = list(prompt)

    def norm(x):
        return x / np.sqrt((x * x).mean() + np.float32(1e-5))

    for place in range(len(prompt) + count - 1):
        x = words[found[place]]
        for layer, (keys, values) in enumerate(cache):
            part = {name: matrices[f"{name}.{layer}"] for name in generate.MATRICES}
            keys.append(part["key"] @ norm(x))
            values.append(part["value"] @ norm(x))
            weighed = np.array(keys) @ (part["query"] @ norm(x)) * np.float32(generate.WIDTH**-0.5)
            weighed = np.exp(weighed - weighed.max())
            x = x + part["out"] @ (weighed / weighed.sum() @ np.array(values))
            x = x + part["down"] @ np.maximum(part["up"] @ norm(x), 0)
        if place >= len(prompt) - 1:
            found.append(int((scores @ norm(x)).argmax()))
    return found


def test_wrong_options_of_the_model():
    for words in (["--prompt", "64"], ["--tokens", "99"]):
        done = subprocess.run([sys.executable, HERE / "generate.py", *words], capture_output=True, check=False)
        assert done.returncode == 2, words


# Failures, and programs that do little

USES = """
import ctypes, os, signal, sys, time
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
memory, context = ctypes.c_uint64(), ctypes.c_void_p()
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)
driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
print(sys.argv[2:], flush=True)
exec(sys.argv[1])
"""


@pytest.fixture
def uses(tmp_path):
    path = tmp_path / "uses it.py"
    path.write_text(USES)
    return ["--device", "sim", "-q", "--", sys.executable, path]


def left(folder):
    return sorted(re.sub(r"\d{8}_\d{6}", "T", path.name) for path in (folder / "traces").iterdir())


THREE = ["trace_T.json", "trace_T.jsonl", "trace_T.mp"]


def test_arguments_and_status_are_the_commands(uses, tmp_path):
    done = run(tmp_path, *uses, "sys.exit(7)", "a b", "", "'\"$x`", "-q", "*")
    assert (done.returncode, done.stdout, done.stderr) == (7, repr(["a b", "", "'\"$x`", "-q", "*"]) + "\n", "")
    assert left(tmp_path) == THREE
    (lines,) = (tmp_path / "traces").glob("*.jsonl")
    last = lines.read_text().splitlines()[-1]
    assert json.loads(last[2:]) == {"kind": "end", "records": 0, "status": 7}


@pytest.mark.full
def test_command_killed(uses, tmp_path):
    done = run(tmp_path, *uses, "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 128 + signal.SIGKILL and left(tmp_path) == THREE
    (lines,) = (tmp_path / "traces").glob("*.jsonl")
    (fact,) = gpt.trace.open(lines).incomplete
    assert fact.startswith("no end of process")


@pytest.mark.full
def test_an_interrupt_is_the_commands(uses, tmp_path):
    # Python may miss a signal that arrives before a long sleep.
    command = [TRACE, *map(str, uses), "while True: time.sleep(0.1)"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True) as process:  # fmt: skip
        assert process.stdout.readline() == b"[]\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    assert left(tmp_path) == THREE


@pytest.mark.full
def test_two_runs_in_one_second(uses, tmp_path):
    while time.time() % 1 > 0.3:
        time.sleep(0.05)
    command = [TRACE, *map(str, uses), "time.sleep(1)"]
    runs = [subprocess.Popen(command, cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [one.wait(60) for one in runs] == [0] * 4
    names = [path.name for path in (tmp_path / "traces").iterdir()]
    assert len(names) == 12 and any("_2." in name for name in names)


def test_command_missing_or_without_gpu_use(tmp_path):
    done = run(tmp_path, "./nothing")
    assert done.returncode == 127 and len(done.stderr.splitlines()) == 1 and left(tmp_path) == []
    done = run(tmp_path, "sh", "-c", "exit 3")
    assert done.returncode == 3 and left(tmp_path) == []
    assert done.stderr == "gpt-trace: warning: the command never used the CUDA driver: there is nothing to show\n"


def test_wrong_options(tmp_path):
    for words, status, fact in (
        ([], 2, "name a COMMAND"),
        (["--"], 2, "name a COMMAND"),
        (["--output"], 2, "no such option: '--output'"),
        (["-o"], 2, "-o requires a value"),
        (["--device=gpu", "touch", "ran"], 2, "'gpu' is neither real nor sim"),
        (["-o", "/dev/null/x", "touch", "ran"], 4, "/dev/null/x: not a folder"),
        (["-o", "/proc", "touch", "ran"], 4, "cannot be written"),
    ):
        done = run(tmp_path, *words)
        assert done.returncode == status and fact in done.stderr and done.stdout == ""
    assert [*tmp_path.iterdir()] == []


@pytest.mark.full
def test_a_full_disk(uses, tmp_path):
    def few():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, 1 << 13))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = run(tmp_path, *uses, "pass", preexec_fn=few)
    assert done.returncode == 0


@pytest.mark.full
def test_standard_output_full(tmp_path):
    code = "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); sys.exit(7)"
    with open("/dev/full", "w") as full:
        command = [TRACE, "--device", "sim", "--", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=ENV, stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=120, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "gpt-trace: warning: standard output: cannot be written\n")
    assert left(tmp_path) == THREE


@pytest.mark.full
def test_kernel_option_without_root_or_bpftrace_is_reported(uses, tmp_path):
    words = [*uses[:2], "--kernel", *uses[2:], "sys.exit(5)", "x"]
    env = {**ENV, "PATH": ENV["PATH"]}
    done = subprocess.run([TRACE, *map(str, words)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    assert done.returncode == 5 and done.stdout == "['x']\n"
    if "trace_T.kernel.mp" not in left(tmp_path):
        assert left(tmp_path) == THREE
        (line,) = done.stderr.splitlines()
        assert line.startswith(
            "gpt-trace: warning: ioctls are recorded, functions of NVIDIA's kernel modules are not: "
        )
