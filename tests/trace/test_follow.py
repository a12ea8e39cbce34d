"""Following traces: which files are read, once each, and what's reported about incomplete ones."""

from itertools import chain

import pytest

from gpt.base.errors import MalformedError, TruncatedError
from gpt.stream import records, wire
from gpt.trace.follow import Follow
from gpt.trace.kinds import CALLS, LOADS
from gpt.trace.process import iter_processes
from tests.trace import forge


def child(pid, path=None, how="fork"):
    return records.make("child", pid=pid, how=how, path=path)


def read(path):
    with open(path, "rb") as file:
        yield from wire.read_records(file, str(path))


def followed(*paths, read=read):
    """Return each trace after reading it, and the paths of missing ones."""
    found = Follow(paths, read)
    traces = [(trace, sum(1 for _ in trace)) and trace for trace in found]
    return traces, [path for _, path in found.absent]


@pytest.fixture
def write(tmp_path):
    def call(name, *segments):
        (tmp_path / name).write_bytes(forge.pack(*segments))
        return tmp_path / name

    return call


def test_each_file_is_read_once_and_roots_come_first(write, tmp_path):
    a = write("a", forge.trace(child(2, "b"), child(3, "c"), child(4, "a")))
    b = write("b", forge.trace(child(3, "c"), child(5, "gone"), child(6, "."), child(7, "n\0ul")))
    write("c", forge.trace(child(2, "b")))
    traces, absent = followed(a, b)
    assert [(trace.path.name, trace.root) for trace in traces] == [("a", True), ("b", True), ("c", False)]
    assert absent == [str(tmp_path / name) for name in ("gone", ".", "n\0ul")]


def test_the_trace_of_a_child_that_cannot_be_is_absent(write, tmp_path):
    paths = ["x" * 5000, "n\0ul", "root.mp/x", "loop", "."]
    (tmp_path / "loop").symlink_to("loop")
    root = write("root.mp", forge.trace(*[child(11 + number, path) for number, path in enumerate(paths)]))
    traces, absent = followed(root)
    assert [trace.name for trace in traces] == [str(root)]
    assert absent == [str(tmp_path / path) for path in paths]


def test_only_files_next_to_the_trace_are_opened(write, tmp_path):
    """The writer of a trace chose the names in it, so a file elsewhere is only read if the user names it, too."""
    for folder in ("inner", "other"):
        (tmp_path / folder).mkdir()
    other = write("other/b", forge.trace())
    write("inner/c", forge.trace()), write("d", forge.trace())
    (tmp_path / "inner" / "link").symlink_to("c")
    names = [str(other), "../other/b", "../d", str(tmp_path / "inner" / "c"), "./c", "link", "c"]
    root = write("inner/a", forge.trace(*[child(11 + number, name) for number, name in enumerate(names)]))
    traces, absent = followed(root)
    assert [trace.name for trace in traces] == [str(root), str(root.with_name("c"))]
    assert absent == [str(root.parent / name) for name in names[:-1]]
    traces, absent = followed(root, other)
    assert other in [trace.path for trace in traces] and absent == [str(root.parent / name) for name in names[2:-1]]


def test_interrupted_processes_are_known(write):
    (trace,), _ = followed(
        write("a", *(forge.trace(pid=n, end=n % 2) for n in range(5)), forge.trace(child(2), child(4, how="exec")))
    )
    assert trace.interrupted == {0, 2, 4} and trace.forked == {2}


def test_on_a_pipe_the_segments_of_children_follow():
    """An `exec` leads to another segment than the one of the process that called it."""
    known = forge.api(1, "cuInit")
    first = forge.trace(known, child(2, "fork.there"), child(3, "fork.gone"), child(10, "exec", "exec"), pid=10)
    segments = [first, forge.trace(known, pid=2), forge.trace(child(9), pid=3)]
    for more, missing in ([], ["fork.gone", "exec"]), ([forge.trace(known, pid=10)], ["fork.gone"]):
        _, absent = followed(None, read=lambda path, more=more: chain(*segments, *more))
        assert absent == missing


def test_a_malformed_child_record_is_refused(write):
    path = write("a", forge.trace({"kind": "child", "pid": 1, "how": "fork", "path": 7}))
    with pytest.raises(MalformedError, match=r"child\.path is not of type str"):
        followed(path)


def test_process_has_the_requested_records_of_its_segment():
    library = records.make("library", path="l", size=5)
    calls = forge.calls([(5, 10, 1, 0)], thread=7)
    records_ = forge.trace(forge.api(1, "cuInit"), calls, library, pid=4) + forge.trace(library, end=False, pid=5)
    first, second = iter_processes(iter(records_), CALLS)
    assert (first.pid, first.api(1).name, first.api(2).name, first.threads) == (4, "cuInit", "#2", {7})
    assert not first.libraries and first.started and not second.started
    first, second = iter_processes(iter(records_), LOADS)
    assert not first.apis and list(first.libraries) == ["l"] and second.started
    assert not list(first.calls.take())


def test_processes_of_a_truncated_segment_come_before_the_error():
    def torn():
        yield from forge.trace(forge.api(1, "cuInit"), end=False)
        raise TruncatedError("torn")

    found = iter_processes(torn(), CALLS)
    assert next(found).apis
    with pytest.raises(TruncatedError):
        next(found)
