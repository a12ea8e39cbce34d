"""The common behavior of all stages: tests gpt-stream(5) and gpt(7) on real processes.

Most are forks of one process that has imported the stages (tests/loaded.py). Real executables are started where a test
holds a dialog with the process, sends a signal, or looks at the start: closed descriptors, a terminal, --help,
--version.

For a new executable, add a line to STAGES (tests/stages/contract.py), with the options that it requires.
"""

import io
import os
import pty
import resource
import select
import signal
import subprocess
import threading
import tomllib
from pathlib import Path

import msgpack
import pytest

import gpt
from gpt.stream import jsonl, records, wire
from tests.demo.build import build
from tests.stages.contract import STAGES, run
from tests.tiers import first, full
from tests.trace import forge

TAKEN = {  # kinds that aren't passed on, because an answer replaces them
    "gpt-analyze": {"api", "calls", "clock", "launches"},
    "gpt-ptx-probe": {"ptx"},
    "gpt-sass-probe": {"element"},
}

PASSES = {"gpt-dump"}  # their results are not in the stream

# For the code in gpt/stream/stage.py, gpt/stream/wire.py and gpt/base/cli.py that serves all stages.
alike = pytest.mark.parametrize(
    "stage", [name if name in ("gpt-locate", "gpt-analyze") else full(name) for name in STAGES], indirect=True
)

WORK: dict[str, bytes] = {}  # by stage name, made once; paths are relative
HEADER = wire.pack(wire.header("test", ["test"]))
END = wire.pack(records.make("end", records=77, status=0))
STRANGE = [  # things that no stage knows, in encodings that Python doesn't write
    b"\x83\xa4kind\xa6x-mine\xa1f\xca\x3f\x80\x00\x00\xa1n\xd3" + b"\xff" * 8,
    b"\x82\xa4kind\xa6x-mine\xa1k\x83\x01\x02\xc0\x03\xa2\xff\xfe\xc7\x03\x05abc",
    b"\xdf\x00\x00\x00\x02\xd9\x04kind\xa4diag\xa1x\xc4\x00",
]
SYNC = b"\x83\xa4kind\xa4sync\xa2id\xcd\x00\x07\xa3why\xca\x40\x00\x00\x00"
UNFINISHED = HEADER + STRANGE[0] + SYNC


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    return build(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def folder(tmp_path, demo):
    (tmp_path / "libdemo.so").symlink_to(demo)
    (tmp_path / "names.txt").touch()  # nothing was used, so no name can be missing
    return tmp_path


@pytest.fixture(params=STAGES)
def stage(request, folder):
    """Run a stage: `stage(*arguments, data=bytes)`."""

    class Stage:
        name = request.param
        command = (name, *STAGES[name])

        def __call__(self, *args, data=b"", **options):
            return run([*self.command, *args], folder, data=data, **options)

        def popen(self, **options):
            return subprocess.Popen(self.command, cwd=folder, **options)

    return Stage()


def read(data):
    return list(wire.read_records(io.BytesIO(data), "out"))


@pytest.fixture
def work(stage, folder):
    """Return a segment with work for the stage, with unknown keys in each record; it's canonical otherwise."""
    if stage.name not in WORK:
        WORK[stage.name] = make_work(stage, folder)
    return WORK[stage.name]


def make_work(stage, folder):
    if stage.name == "gpt-extract":
        text = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
        found = [wire.header("test", []), records.make("module", id=1, type="ptx", data=text), {"kind": "end"}]
    elif stage.name in ("gpt-asm", "gpt-ptx-probe"):
        found = read(run(["gpt-extract", "--ptx", "libdemo.so"], folder).stdout)
    elif stage.name == "gpt-sass-probe":
        found = read(run(["gpt-extract", "--payload", "--arch", "sm_90", "libdemo.so"], folder).stdout)
    elif stage.name == "gpt-analyze":
        apis = forge.api(7, "cuMemAlloc"), forge.api(8, "cuMemcpyHtoD")
        rows = [(1000 + i, 50, 7 + i % 2, 0, 1, 2, 4096, 0) for i in range(9)]
        kernel = records.make("function", id=1, name="_Z1kv")
        found = forge.trace(*apis, forge.calls(rows, forge.MEMORY), kernel, forge.launches({1: 2}))
    elif stage.name == "gpt-dump":
        launch = forge.probed(7, 5, 2, 1, 32), forge.buffer(7, bytes(16))
        found = forge.trace(forge.probe_map("m", n="u64"), forge.kernel(5, 2, "_Z1kv", 1), *launch)
    else:
        data = run(["gpt-extract", "libdemo.so"], folder).stdout
        if stage.name != "gpt-locate":
            data = run(["gpt-locate", *STAGES["gpt-locate"]], folder, data=data).stdout
        found = read(data)
    return b"".join(wire.pack({**record, "x-mine": [1, b"\xff", "\udcff", {2: 1 << 60}]}) for record in found)


def one_line(stage, done, status):
    """Check that a run failed with a one-line message, and return the message."""
    lines = done.stderr.decode().splitlines()
    assert done.returncode == status, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{stage.name}: error: ")
    return lines[0]


def quiet(done):
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def passed(data, given):
    """Check that the records `given` are in `data`, unchanged and in order, and return all records."""
    found = [r.raw for r in read(data)]
    rest = iter(found)
    for record in given:
        assert record in rest, f"{msgpack.unpackb(record, strict_map_key=False, unicode_errors='replace')} is missing"
    return found


def test_every_executable_is_held_to_it():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(STAGES) == set(project["scripts"]) - {"gpt-attach", "gpt-neutrino", "neutrino"}  # these read no stream


# What passes through


@alike
def test_unknown_records_pass_unchanged(stage):
    found = passed(quiet(stage(data=HEADER + b"".join(STRANGE) + SYNC + END)), [*STRANGE, SYNC])
    assert found[1:-1] == [*STRANGE, SYNC]


def test_processed_records_pass_unchanged(stage, work):
    output = quiet(stage(data=work))
    given = [r for r in read(work) if r["kind"] not in TAKEN.get(stage.name, ())]
    found = passed(output, [r.raw for r in given[1:-1]])
    assert len(found) > len(given) or stage.name in PASSES, "it had nothing to do"
    header, end = read(output)[0], read(output)[-1]
    assert {**header, "via": []} == {**given[0], "via": []}
    assert {**end, "records": 0} == {**given[-1], "records": 0}


@alike
def test_segments_stay_apart_and_none_gets_an_end_that_it_had_not(stage, work):
    data = HEADER + STRANGE[0] + END + work + UNFINISHED + HEADER + END + HEADER
    kinds = [r["kind"] for r in read(quiet(stage(data=data))) if r["kind"] in ("header", "end")]
    assert kinds == ["header", "end"] * 2 + ["header", "header", "end", "header"]


@alike
def test_via_grows(stage):
    header = wire.pack(wire.header("test", []) | {"via": ["a", "b"], "x-mine": 1})
    found, *_ = read(stage(data=header + END).stdout)
    assert found["via"] == ["a", "b", stage.name]
    assert found["x-mine"] == 1
    assert found["tool"] == "test"


@alike
def test_end_is_recounted(stage, work):
    status = wire.pack(records.make("end", records=0, status=3))
    data = HEADER + b"".join(STRANGE) + status + HEADER + END + work
    count, ends = 0, []
    for record in read(quiet(stage(data=data))):
        if record["kind"] == "header":
            count = 0
        elif record["kind"] == "end":
            assert record["records"] == count
            ends.append((count, record.get("status")))
        else:
            count += 1
    assert ends[:2] == [(len(STRANGE), 3), (0, 0)]
    given = [record for record in read(work) if record["kind"] not in TAKEN.get(stage.name, ())]
    assert ends[2][0] > len(given) - 2 - (stage.name in PASSES)


def test_equal_inputs_give_equal_outputs(stage, work):
    assert quiet(stage(data=work)) == quiet(stage(data=work))


@alike
def test_json_equals_text(stage, work):
    expected = quiet(stage(data=work))
    written = quiet(stage("--json", data=work))
    assert b"".join(r.raw for r in jsonl.read_lines(io.BytesIO(written), "out")) == expected
    lines = "".join(f"{line}\n" for record in read(work) for line in jsonl.lines(record))
    assert quiet(stage("--from-json", data=lines.encode())) == expected


def test_stages_understand_each_other_in_json(folder):
    extracted = quiet(run(["gpt-extract", "libdemo.so", "--json"], folder))
    located = quiet(run(["gpt-locate", *STAGES["gpt-locate"], "--from-json", "--json"], folder, data=extracted))
    patched = quiet(run(["gpt-patch", *STAGES["gpt-patch"], "--from-json", "--json"], folder, data=located))
    slim = (folder / "slim/libdemo.so").read_bytes()
    (folder / "slim/libdemo.so").unlink()

    data = quiet(run(["gpt-extract", "libdemo.so"], folder))
    for name in ("gpt-locate", "gpt-patch"):
        data = quiet(run([name, *STAGES[name]], folder, data=data))
    assert (folder / "slim/libdemo.so").read_bytes() == slim
    found = list(jsonl.read_lines(io.BytesIO(patched), "out"))
    assert [r.raw for r in found[1:]] == [r.raw for r in read(data)[1:]]
    assert found[0]["via"] == ["gpt-locate", "gpt-patch"]
    assert {"library", "element", "span", "tally", "patched"} <= {r["kind"] for r in found}


# A conversation


def answer(process, number):
    """Return the output of a process up to and including `sync`, while its input stays open."""
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape")
    found = []
    timer = threading.Timer(30, process.kill)
    timer.start()
    while not found or found[-1] != {"kind": "sync", "id": number}:
        block = os.read(process.stdout.fileno(), 1 << 16)
        assert block, f"it ended, or said nothing for 30 s; before: {[r['kind'] for r in found]}"
        unpacker.feed(block)
        found += unpacker
    timer.cancel()
    return found


def test_coprocess_answers_on_request(stage, work):
    header, *middle, end = read(work)

    def ask(data, number):
        process.stdin.write(data + wire.pack(records.make("sync", id=number)))
        return answer(process, number)

    with stage.popen(stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        first = ask(header.raw, 1)
        assert [r["kind"] for r in first] == ["header", "sync"]
        second = ask(b"".join(r.raw for r in middle), 2)
        given = [record for record in middle if record["kind"] not in TAKEN.get(stage.name, ())]
        assert len(second) > len(given) + (stage.name not in PASSES), "the answer lacks what the records led to"
        third = ask(b"", 3)
        assert [r["kind"] for r in third] == ["sync"]
        assert not select.select([process.stdout], [], [], 0)[0]
        process.stdin.write(end.raw)
        process.stdin.close()
        rest = io.BytesIO(process.stdout.read())
        *more, last = msgpack.Unpacker(rest, strict_map_key=False, unicode_errors="surrogateescape")
        assert last["records"] == len(first + second + third + more) - 1
        news = ["answer"] * 6 if stage.name == "gpt-analyze" else []  # the answers that say how the process ended
        assert [record["kind"] for record in more] == news
    assert process.returncode == 0


@alike
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quietly(stage, number):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with stage.popen(**pipes) as process:
        process.stdin.write(HEADER + wire.pack(records.make("sync", id=1)))
        answer(process, 1)
        process.send_signal(number)
        assert process.wait(30) == -number
        assert process.stdout.read() == process.stderr.read() == b""


# Bad input


@alike
@pytest.mark.parametrize("data", first(b"hello, this is not a stream\n", b"{}\n", b"\n", b"\x00" * 100, b"\xff" * 100))
def test_input_that_is_not_a_stream_is_refused(stage, data):
    assert "<stdin>" in one_line(stage, stage(data=data), 3)


@alike
@pytest.mark.parametrize("args", first([], ["--from-json"]))
def test_an_empty_input_is_refused_and_an_empty_pipe_without_a_word(stage, args):
    """An empty pipe means that the stage before it failed and has already said so. One fault gives one error
    message.
    """
    done = stage(*args, data=b"")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    with open("/dev/null", "rb") as null:
        assert "<stdin>: empty" in one_line(stage, stage(*args, stdin=null), 3)


@alike
@pytest.mark.parametrize(
    ("head", "hint"),
    first(
        (b'{"kind": "header", "version": "1.0"}\n', "JSON lines (add --from-json)"),
        (b"\x7fELF\2\1\1" + bytes(100), "an ELF file (gpt-extract reads it)"),
        (b"PK\3\4" + bytes(100), "a zip file or wheel (gpt-extract -r reads it)"),
        (b"\x1f\x8b\x08" + bytes(100), "a gzip file (unpack it first)"),
        (b".version 8.0\n.target sm_90\n", "PTX (gpt-extract --ptx reads it)"),
        (b"_Z1kv\n", "text"),
    ),
)
def test_an_input_of_another_form_gets_a_hint(stage, head, hint, folder):
    (folder / "input").write_bytes(head)
    if stage.name != "gpt-extract":  # gpt-extract reads such files
        for done, where in ((stage(data=head), "<stdin>"), (stage("input"), "input")):
            assert one_line(stage, done, 3).endswith(f": {where}: not a stream in msgpack but {hint}")
    if not head.startswith(b"{"):
        assert f"input: not JSON lines but {hint}" in one_line(stage, stage("--from-json", "input"), 3)


@alike
def test_msgpack_where_json_is_to_be_gets_a_hint(stage):
    line = one_line(stage, stage("--from-json", data=HEADER + END), 3)
    assert line.endswith(": <stdin>: not JSON lines but a stream in msgpack (leave out --from-json)")


# Nothing to do


@pytest.fixture
def filter_(stage):
    if stage.name == "gpt-analyze":
        pytest.skip("says what there is, which may be nothing")
    return stage


def test_nothing_to_do_is_an_error_which_the_stages_after_it_hear_of(filter_):
    done = filter_(data=HEADER + STRANGE[0] + END + HEADER + STRANGE[1] + END)
    assert " in the stream: " in one_line(filter_, done, 1)
    found = read(done.stdout)
    assert [record["kind"] for record in found] == ["header", "x-mine", "end", "header", "x-mine", "diag", "end"]
    assert found[-1]["records"] == 2
    again = filter_(data=done.stdout)
    assert (again.returncode, again.stderr) == (1, b"")


@alike
@pytest.mark.parametrize("data", [HEADER + END, HEADER + STRANGE[0] + SYNC + END])
def test_empty_source_and_conversation_are_not_errors(filter_, data):
    quiet(filter_(data=data))


@alike
@pytest.mark.parametrize("status", first(4, 0))
def test_errors_of_an_earlier_stage_are_not_repeated(filter_, status):
    diag = wire.pack(records.make("diag", level="error", where="libfoo.so", text="No such file or directory"))
    done = filter_(data=HEADER + diag + wire.pack(records.make("end", records=1, status=status)))
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_truncated_stream_is_reported_once(folder):
    located = quiet(run(["gpt-extract", "libdemo.so"], folder))
    first = run(["gpt-locate", *STAGES["gpt-locate"]], folder, data=located[:-200])
    assert first.returncode == 3 and first.stderr.count(b"\n") == 1
    assert read(first.stdout)[-1]["kind"] == "diag"
    second = run(["gpt-patch", *STAGES["gpt-patch"]], folder, data=first.stdout)
    assert (second.returncode, second.stderr) == (3, b"")
    assert not (folder / "slim/libdemo.so").exists()


@alike
@pytest.mark.parametrize("size", first(len(HEADER) + 1, 1, 20, len(HEADER) - 1, len(UNFINISHED) - 1))
def test_a_torn_input_is_refused(stage, size):
    last = max(edge for edge in (0, len(HEADER), len(HEADER + STRANGE[0])) if edge < size)
    line = one_line(stage, stage(data=UNFINISHED[:size]), 3)
    assert line.endswith(f"<stdin>+{last:#x}: truncated {size - last} bytes into a record")


@alike
def test_complete_records_before_a_truncation_pass(stage):
    found = read(stage(data=UNFINISHED + STRANGE[1][:-1]).stdout)
    assert [r.raw for r in found[1:3]] == [STRANGE[0], SYNC]


@alike
def test_records_without_a_header_are_refused(stage):
    assert "<stdin>+0x0: sync record outside" in one_line(stage, stage(data=SYNC), 3)


@alike
def test_another_version_is_refused(stage):
    header = wire.pack(wire.header("test", []) | {"version": "2.0"})
    assert "version 2.0" in one_line(stage, stage(data=header + END), 3)


@alike
@pytest.mark.parametrize("data", first(b"hello\n", b'{"kind": "sync", "id": 1}\n', b'{"kind": "hea', HEADER))
def test_json_that_is_not_a_stream_is_refused(stage, data):
    assert "<stdin>" in one_line(stage, stage("--from-json", data=data), 3)


# Bad surroundings


@alike
def test_a_full_disk_is_an_error(stage, work):
    with open("/dev/full", "wb") as disk:
        line = one_line(stage, stage(data=work, stdout=disk), 1)
    assert line == f"{stage.name}: error: <stdout>: No space left on device"


@alike
@pytest.mark.parametrize("repeat", first(1, 20000))
def test_a_closed_pipe_ends_it_quietly(stage, repeat):
    reader, writer = os.pipe()
    os.close(reader)
    done = stage(data=HEADER + STRANGE[0] * repeat + END, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@alike
def test_early_reader_exit_is_quiet(stage, folder):
    data = folder / "stream.mp"
    data.write_bytes(HEADER + STRANGE[0] * 50000 + END)
    with open(data, "rb") as file, stage.popen(stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


@alike
@pytest.mark.parametrize("redirection", ["<&-", ">&-"])
def test_a_closed_descriptor_is_an_error(stage, folder, redirection):
    data = HEADER + STRANGE[0] + END
    done = run(["sh", "-c", f'exec "$@" {redirection}', "sh", *stage.command], folder, data=data)
    line = one_line(stage, done, 1)
    assert line == f"{stage.name}: error: {'<stdin>' if '<' in redirection else '<stdout>'}: Bad file descriptor"


@alike
def test_a_terminal_as_input_is_a_usage_error(stage):
    master, slave = pty.openpty()
    try:
        assert "<stdin>" in one_line(stage, stage(stdin=slave), 2)
    finally:
        os.close(master)
        os.close(slave)


def as_text(stage, *args):
    """Return the command line for using a stage by hand. Sinks print text anyway, and other stages do on a terminal."""
    return [*(word for word in stage.command if word != "--stream"), *args]


@alike
def test_a_terminal_as_output_gets_no_bytes_but_a_table(stage, work, folder):
    master, slave = pty.openpty()
    done = run(as_text(stage), folder, data=work, cold=True, stdout=slave, env={**os.environ, "TERM": "dumb"})
    os.close(slave)
    text = os.read(master, 1 << 16).decode()
    os.close(master)
    assert (done.returncode, done.stderr) == (0, b"")
    assert text.replace("\r\n", "").isprintable() and "kind" not in text
    assert len(text.splitlines()) >= 2


@alike
def test_text_to_a_pipe_or_file_on_request(stage, work, folder):
    """Sinks always write text; other stages do with --table. A table has no colours, and 80 columns."""
    args = as_text(stage, *([] if stage.name == "gpt-analyze" else ["--table"]))
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    text = quiet(run(args, folder, data=work, env=env)).decode()
    lines = text.splitlines()
    assert text.replace("\n", "").isprintable() and "kind" not in text
    assert len(lines) >= 2 and max(map(len, lines)) <= 80
    with open(folder / "report.txt", "wb+") as file:
        assert run(args, folder, data=work, stdout=file, env=env).returncode == 0
        file.seek(0)
        assert file.read().decode() == text
    with open("/dev/full", "wb") as disk:
        line = one_line(stage, run(args, folder, data=work, stdout=disk), 1)
    assert line == f"{stage.name}: error: <stdout>: No space left on device"


@alike
def test_a_text_and_json_are_two_forms(stage):
    if stage.name != "gpt-analyze":
        assert "--table cannot be combined with --json" in one_line(stage, stage("--table", "--json"), 2)


# The command line


@alike
def test_help_is_fast(stage):
    times = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = quiet(stage("--help", cold=True)).decode()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert text.startswith(f"Usage: {stage.name} ")
    for option in ("--json", "--from-json", "--verbose", "--version", "--help"):
        assert option in text
    assert min(times) < 0.4  # CPU time: 0.15 s is the goal, but test machines are busy and slow


@alike
def test_version(stage):
    assert quiet(stage("--version", cold=True)).decode() == f"{stage.name} {gpt.__version__}\n"


@alike
@pytest.mark.parametrize("args", first(["--no-such-option"], ["--jso"], ["--version=3"]))
def test_unknown_option_is_a_usage_error(stage, args):
    assert "--help" in one_line(stage, stage(*args, data=HEADER + END), 2)


@alike
def test_missing_file_is_named(stage):
    done = stage("absent.mp")
    assert "absent.mp: No such file or directory" in one_line(stage, done, 4)
