"""Features shared by stages: exit status, messages, signals, and reading and writing segments."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from gpt.stages.analyze import ANALYSES
from gpt.stream import records, wire
from gpt.stream.stage import FLUSH_BYTES
from tests import loaded
from tests.stages import tools

TOP = Path(__file__).parents[1]
HEADER = wire.pack(wire.header("test", []))
END = wire.pack(records.make("end", records=9, status=0))

# A stage in this file: `body` is its command, which can use `stage`, `files` and the modules.
STAGE = """
import os, signal, sys, time
from pathlib import Path
from typing import Annotated
import typer
from gpt.base import cli; from gpt.base import errors; from gpt.stream import records
from gpt.stream.stage import Stage

def command(
    files: Annotated[list[Path] | None, typer.Argument()] = None,
    json: cli.Json = False, from_json: cli.FromJson = False, verbose: cli.Verbose = False, version: cli.Version = False,
) -> int:
    "Do as the test says."
    stage = Stage("gpt-test", json=json, from_json=from_json)
    files = files or []
    {body}
    return stage.status

sys.exit(cli.run("gpt-test", command))
"""


def argv(body, *args, python=(sys.executable, "-c")):
    return [*python, STAGE.format(body="\n    ".join(body.strip().splitlines())), *args]


def run(body, *args, data=b"", **options):
    return loaded.run(argv(body, *args, python=["python-c"]), data, cwd=TOP, **options)


def read(data):
    return list(wire.read_records(io.BytesIO(data), "out"))


def sync(number):
    return wire.pack(records.make("sync", id=number))


PASS = "return stage.filter(lambda record: [record], files)"


# How it ends


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("raise errors.GptError('bad', 'lib.so+0x10')", 1, "lib.so+0x10: bad"),
        ("raise errors.UsageError('senseless')", 2, "senseless"),
        ("raise errors.MalformedError('no ELF', 'x')", 3, "x: no ELF"),
        ("raise errors.TruncatedError('ends', 'x')", 3, "x: ends"),
        ("raise errors.MissingError('no ptxas')", 4, "no ptxas"),
        ("open('/nonexistent/file')", 4, "/nonexistent/file: No such file or directory"),
        ("open('/')", 1, "/: Is a directory"),
        ("raise OSError('odd')", 1, "odd"),
        ("raise MemoryError", 1, "out of memory"),
        (
            "raise errors.GptError('two\\nlines \\x1b[1m \\udcff \\xe9', 'a\\tb')",
            1,
            "a\\tb: two\\nlines \\x1b[1m \\udcff \xe9",
        ),
        ("raise ValueError('oops')", 1, "internal error: ValueError: oops (-v shows where; please report it)"),
    ],
)
def test_a_fault_is_one_line_and_a_status(body, status, message):
    done = run(body)
    assert (done.returncode, done.stdout) == (status, b"")
    assert done.stderr.decode() == f"gpt-test: error: {message}\n"


def test_wrong_command_lists_the_commands():
    done = tools.run("gpt-analyze", "nope")
    fact = f"No such command 'nope' (there are {', '.join(ANALYSES)})"
    assert (done.status, done.err) == (2, f"gpt-analyze: error: {fact}\n")


def test_verbose_shows_the_traceback_and_nothing_else_does():
    done = run("raise errors.MalformedError('no ELF')", "-v")
    assert done.returncode == 3
    assert done.stderr.startswith(b"Traceback") and done.stderr.endswith(b"gpt-test: error: no ELF\n")


def test_status_is_that_of_the_worst_fault_and_warnings_do_not_count():
    done = run(
        """
        stage.error(errors.MalformedError("b", "a"))
        stage.error(errors.GptError("c"))
        stage.warn("w", "careful")
        """.replace("\n        ", "\n")
    )
    assert done.returncode == 3
    assert done.stderr == b"gpt-test: error: a: b\ngpt-test: error: c\ngpt-test: warning: w: careful\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_after_cleaning_up(number, tmp_path):
    body = f"""
try:
    os.write(1, b"ready")
    time.sleep(60)
finally:
    Path({str(tmp_path / "clean")!r}).touch()
"""
    with subprocess.Popen(argv(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TOP) as process:
        assert process.stdout.read(5) == b"ready"
        process.send_signal(number)
        assert process.stderr.read() == b""
    assert process.returncode == -number
    assert (tmp_path / "clean").exists()


AT_EXIT = "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
REPORTED = """
class Fatal(errors.GptError):
    status = property(lambda self: os.kill(os.getpid(), signal.SIGINT) or 1)
raise Fatal("bad")
"""


@pytest.mark.parametrize(("body", "said"), [(AT_EXIT, b""), (REPORTED, b"gpt-test: error: bad\n")])
def test_a_signal_at_the_end_is_as_silent(body, said):
    done = subprocess.run(argv(body), cwd=TOP, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, said)


def test_nohup_is_respected():
    body = "os.kill(os.getpid(), signal.SIGHUP); time.sleep(0.01); stage.status = 3"
    done = subprocess.run(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *argv(body)], cwd=TOP, timeout=60, check=False)
    assert done.returncode == 3


def test_messages_are_dropped_without_a_listener():
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *argv("raise errors.UsageError('x')")], cwd=TOP, timeout=60, check=False
    )
    assert done.returncode == 2


def test_options_of_all_stages():
    text = run("pass", "--help").stdout.decode()
    for option in ("--json", "--from-json", "--verbose", "-v", "--version", "--help", "-h"):
        assert option in text
    assert "completion" not in text
    assert run("pass", "-h").stdout.decode() == text


# Descriptors


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_descriptor(closed, tmp_path):
    body = f"""
with open({str(tmp_path / "file")!r}, "w") as file:
    file.write(str(file.fileno()))
    try:
        stage.write(records.make("sync", id=1))
        stage.flush()
    except OSError as error:
        file.write(" " + str(error))
"""
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *argv(body)], cwd=TOP, stdout=-3, timeout=60, check=True)
    number, _, error = (tmp_path / "file").read_text().partition(" ")
    assert int(number) > 2
    assert ("Bad file descriptor: '<stdout>'" in error) == (">&-" in closed and closed != "2>&-")


def test_standard_input_that_cannot_be_read_is_named(tmp_path):
    for stdin, fact in ((open(tmp_path / "w", "wb"), "Bad file descriptor"), (open("/dev/null", "wb"), "Bad file")):
        with stdin:
            done = run(PASS, stdin=stdin)
        assert done.returncode == 1
        assert done.stderr.decode().startswith(f"gpt-test: error: <stdin>: {fact}")


def test_a_terminal_as_input_is_a_usage_error():
    master, slave = pty.openpty()
    try:
        done = run(PASS, stdin=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 2
    assert done.stderr == b"gpt-test: error: <stdin>: expects a stream on standard input, which is a terminal\n"


# A filter


def test_a_filter_signs_the_header_and_recounts_the_end():
    data = HEADER + sync(1) + sync(2) + END + HEADER + sync(3) + HEADER + END
    body = """
def double(record):
    assert record["kind"] not in ("header", "sync")
    return [record] if record["kind"] == "end" else [record, record, records.make("sync", id=0)]
return stage.filter(double, files)
"""
    strange = b"\x82\xa4kind\xa1x\xa1y\xca\x00\x00\x00\x00"
    done = run(body, data=data.replace(sync(2), strange))
    assert (done.returncode, done.stderr) == (0, b"")
    found = read(done.stdout)
    assert [r.get("records", r["kind"]) for r in found] == [
        *("header", "sync", "x", "x", "sync", 4),
        *("header", "sync"),
        *("header", 0),
    ]
    assert all(r["via"] == ["gpt-test"] for r in found if r["kind"] == "header")
    assert done.stdout.count(strange) == 2


def test_records_written_at_the_end_precede_the_end_record():
    body = """
return stage.filter(lambda r: [records.make("sync", id=7), r] if r["kind"] == "end" else [r])
"""
    found = read(run(body, data=HEADER + END).stdout)
    assert [r["kind"] for r in found] == ["header", "sync", "end"]
    assert found[2]["records"] == 1


def test_files_are_read_one_after_the_other(tmp_path):
    a, b = tmp_path / "a.mp", tmp_path / "b.mp"
    a.write_bytes(HEADER + sync(1) + END)
    b.write_bytes(HEADER + sync(2))
    expected = run(PASS, data=a.read_bytes() + b.read_bytes()).stdout
    assert run(PASS, str(a), str(b)).stdout == expected
    b.write_bytes(HEADER + sync(2)[:-1])
    done = run(PASS, str(a), str(b))
    assert done.returncode == 3
    assert (
        done.stderr.decode()
        == f"gpt-test: error: {b}+{len(HEADER):#x}: truncated {len(sync(2)) - 1} bytes into a record\n"
    )


def test_calls_are_counted_by_exported_lines():
    fields = [{"name": "v", "type": "u8", "offset": 0}]
    calls = wire.pack(records.make("calls", thread=1, fields=fields, stride=1, rows=b"abc"))
    done = run(PASS, "--json", data=HEADER + sync(1) + calls + END)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["kind"] for r in found] == ["header", "sync", "call", "call", "call", "end"]
    assert found[-1]["records"] == 4
    assert read(run(PASS, data=HEADER + calls + END).stdout)[-1]["records"] == 1
    assert read(run(PASS, "--from-json", data=done.stdout).stdout)[-1]["records"] == 4


# A source

SOURCE = "return stage.source(iter([records.make('sync', id=1)] * {count}), sys.argv[1:])"


def test_a_source_writes_a_segment():
    done = run(SOURCE.format(count=3), "a b")
    found = read(done.stdout)
    assert [r["kind"] for r in found] == ["header", "sync", "sync", "sync", "end"]
    header = found[0]
    assert (header["tool"], header["argv"], header["via"], header["version"]) == ("gpt-test", ["a b"], [], "1.2")
    assert found[-1] == {"kind": "end", "records": 3, "status": 0}
    assert done.stdout == b"".join(msgpack.packb(dict(r)) for r in found)


def test_failing_source_ends_its_segment():
    body = """
def produce():
    yield records.make("sync", id=1)
    raise errors.MalformedError("no ELF", "x")
return stage.source(produce(), [])
"""
    done = run(body)
    found = read(done.stdout)
    assert [r["kind"] for r in found] == ["header", "sync", "diag", "end"]
    assert found[2] == {"kind": "diag", "level": "error", "where": "x", "text": "no ELF"}
    assert found[3] == {"kind": "end", "records": 2, "status": 3}
    assert (done.returncode, done.stderr) == (3, b"gpt-test: error: x: no ELF\n")


@pytest.mark.parametrize("size", [10, FLUSH_BYTES])
@pytest.mark.parametrize(
    "body", ["return stage.source([{record}] * 5, [])", "return stage.filter(lambda r: [{record}] * 5)"]
)
def test_a_full_disk_is_reported_once(body, size):
    with open("/dev/full", "wb") as full:
        record = f"records.make('library_end', path='x' * {size})"
        done = run(body.format(record=record), data=HEADER + END, stdout=full)
    assert (done.returncode, done.stderr) == (1, b"gpt-test: error: <stdout>: No space left on device\n")


@pytest.mark.parametrize("count", [1, 100000])
def test_a_closed_pipe_ends_it_quietly(count):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(SOURCE.format(count=count), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_broken_pipe_in_help_exits_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    done = run("pass", "--help", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
