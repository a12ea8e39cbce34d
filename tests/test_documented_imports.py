"""Users' programs import `gpt.cli`, `gpt.stream`, `gpt.stage`, `gpt.arch`, `gpt.trace`, `gpt.analyze.answer` and
`gpt.tensors`, as the man pages tell them to. The programs here were written before gpt/ had folders, and must keep
working.
"""

import io
import os
import subprocess
import sys

import pytest

from gpt.stream import wire
from tests.trace import forge

# A stage as shown in gpt(7). It also uses the stream by itself, and modules imported by name.
STAGE = '''
"""gpt-count: how many kernels each library has."""

import sys

import gpt.stream
from gpt import arch, cli, stream
from gpt.stage import Stage


def count(
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Add the number of kernels to the end of each library."""
    stage = Stage("gpt-count", json=json, from_json=from_json)
    names = set()

    def handle(record):
        match record["kind"]:
            case "library":
                names.clear()
            case "kernel":
                names.add(record["name"])
            case "library_end":
                record = {**record, "x-kernels": len(names), "x-known": "sm_90" in arch.KNOWN}
                assert gpt.stream.unpack(stream.pack(record)) == record
        yield record

    return stage.filter(handle)


def main() -> int:
    return cli.run("gpt-count", count)


if __name__ == "__main__":
    sys.exit(main())
'''

# A callback as gpt-dump(1) shows it.
CALLBACK = """
import sys
from gpt import stream
file = open(sys.argv[1], "rb")
for record in stream.read_records(file, "launch"):
    if record["kind"] == "kernel":
        print(record["name"])
"""

# A script as gpt-analyze(1) shows it.
SCRIPT = """
from gpt.analyze.answer import Column, make_answer

COLUMNS = [Column("size", "u64", "bytes"), Column("calls", "u64")]

def analyze(trace):
    calls = trace.calls("bytes")
    made = trace.chosen(calls, type="memory", op="alloc")
    sizes = calls["bytes"][made].tolist()
    rows = [(size, sizes.count(size)) for size in sorted(set(sizes))]
    yield make_answer("sizes", COLUMNS, rows)
"""

# Use the model through gpt.trace.open, without gpt-analyze.
OPEN = """
import sys
import gpt.trace
calls = gpt.trace.open(sys.argv[1]).calls("bytes")
print(calls["bytes"].tolist())
"""

# A program as gpt-hook(1) shows it.
TENSORS = """
import gpt.tensors

with gpt.tensors.trace():
    out = [1, 2]
gpt.tensors.record({"w": out})
print(out)
"""

LAYOUT = forge.CALL | {"bytes": "u64"}
ALLOC = forge.api(1, "memAlloc_v2", "cuMemAlloc_v2") | {"type": "memory", "op": "alloc"}


@pytest.fixture
def python(tmp_path):
    """Run a file in a separate folder, with only the installed package and no folder of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(text, *args, data=b""):
        (tmp_path / "program.py").write_text(text)
        command = [sys.executable, "program.py", *args]
        done = subprocess.run(command, cwd=tmp_path, env=environment, input=data, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return done.stdout

    return run


@pytest.fixture
def trace(tmp_path):
    """Return a trace of three allocations."""
    rows = [(1000 * n, 10, 1, 0, size) for n, size in enumerate((512, 4096, 512), 1)]
    path = tmp_path / "t.mp"
    path.write_bytes(forge.pack(forge.trace(ALLOC, forge.calls(rows, LAYOUT))))
    return path


def test_a_stage(python):
    kernels = [{"kind": "kernel", "name": name} for name in ("one", "two", "one")]
    given = [{"kind": "library", "path": "lib.so"}, *kernels, {"kind": "library_end", "path": "lib.so"}]
    found = list(wire.read_records(io.BytesIO(python(STAGE, data=forge.pack(forge.trace(*given)))), "out"))
    assert [record["kind"] for record in found[1:]] == [record["kind"] for record in given] + ["end"]
    assert found[-2] == {"kind": "library_end", "path": "lib.so", "x-kernels": 2, "x-known": True}
    assert b"Add the number of kernels" in python(STAGE, "--help")


def test_a_callback(python, tmp_path):
    (tmp_path / "launch.mp").write_bytes(forge.pack(forge.trace({"kind": "kernel", "name": "one"})))
    assert python(CALLBACK, "launch.mp") == b"one\n"


def test_a_script(trace):
    (trace.parent / "sizes.py").write_text(SCRIPT)
    command = ["gpt-analyze", "--script", "sizes.py", "--format", "csv", trace.name]
    done = subprocess.run(command, cwd=trace.parent, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"size,calls\n512,2\n4096,1\n", b"")


def test_the_model(python, trace):
    assert python(OPEN, trace.name) == b"[512, 4096, 512]\n"


def test_program_names_tensors(python):
    assert python(TENSORS) == b"[1, 2]\n"
