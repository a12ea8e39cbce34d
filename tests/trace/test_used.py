"""Used code: from lists, Negativa-ML's trace.json, and complete and incomplete traces."""

import json

import pytest

import gpt.compat  # noqa: F401 (the lists of other tools)
from gpt.base.errors import GptError, MalformedError
from gpt.stream import records, wire
from gpt.trace.used import IN_MEMORY, read_used
from tests.stages.tools import run


def function(name, **keys):
    return records.make("function", id=1, name=name, **keys)


def segment(*inner, end=True):
    made = [wire.header("gpt-hook", []), *inner]
    if end:
        made.append(records.make("end", records=len(inner), status=0))
    return b"".join(map(wire.pack, made))


def chunk(data, size=4096):
    return wire.pack(records.make("chunk", used=len(data), data=data.ljust(size, b"\0")))


@pytest.fixture
def write(tmp_path):
    def call(data, name="used"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return call


def names(*paths, allow_incomplete=False):
    return set(read_used(list(paths), allow_incomplete).names)


def test_text(write):
    text = "# a comment\n_Z3onePf\n\n  two\t\r\n#two and a half\nthree"
    assert names(write(text)) == {"_Z3onePf", "two", "three"}
    assert names(write("")) == set()
    assert names(write(b"\x5f\xff\n")) == {"_\udcff"}
    with pytest.raises(MalformedError, match="neither a trace nor text"):
        names(write(b"abc\0def"))


def test_trace_json_of_negativa(write):
    value = {"detected_kernels": ["a", "b"], "anything": {"else": 1}}
    assert names(write(json.dumps(value))) == {"a", "b"}


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"detected_kernels": "a"}', '{"detected_kernels": [1]}', '{"a":' * 100_000, '{"\xff": 1}', "{}{}"],
    ids=range(7),
)
def test_no_trace_json(write, text):
    with pytest.raises(MalformedError, match=r"not a trace.json of Negativa-ML"):
        names(write(text))


def test_files_are_united(write):
    files = write("a\n", "1"), write('{"detected_kernels": ["b"]}', "2"), write(segment(function("c")), "3")
    assert names(*files) == {"a", "b", "c"}


def test_a_trace_of_several_segments(write):
    device = records.make("device", index=0, name="H", arch="sm_90", runs="sass")
    first = [device, records.make("module", id=1, type="cubin", path="/a.so", offset=64), function("a", module=1)]
    second = [{**device, "arch": "sm_80"}, records.make("module", id=1, type="cubin"), function("b", module=1)]
    third = [function("c"), function("d", module=99)]
    found = read_used([write(segment(*first) + segment(*second) + segment(*third))], False)
    assert found.names == {"a": "/a.so", "b": IN_MEMORY, "c": None, "d": None}
    assert found.devices == {("sm_90", "sass"), ("sm_80", "sass")}
    assert found.warnings == []


def test_unknown_records_and_keys_are_passed_over(write):
    odd = {"kind": "x-mine", "name": 5}
    assert names(write(segment(odd, {**function("a"), "colour": "red"}))) == {"a"}


def test_a_function_record_without_a_name_is_refused(write):
    with pytest.raises(MalformedError, match="function without name"):
        names(write(segment({"kind": "function", "id": 1})))


def test_modules_do_not_stay_in_memory(write):
    """The files' images can be large, so only the path to the file is kept."""
    import tracemalloc

    modules = [records.make("module", id=n, type="cubin", data=bytes(4 << 20)) for n in range(20)]
    path = write(segment(*modules, function("a", module=3)))
    tracemalloc.start()
    try:
        names(path)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


INTERRUPTED = [
    segment(function("a"), end=False),
    chunk(segment(function("a"), end=False)),
    segment(function("a"), end=False) + segment(function("b")),
    segment(function("b")) + segment(function("a"), end=False),
]
TRUNCATED = [
    segment(function("a"))[:-3],
    segment(function("a"), end=False)[:-3],
    chunk(segment(function("a")))[:-3],
    segment() + segment()[:10],
]


@pytest.mark.parametrize("data", INTERRUPTED, ids=range(len(INTERRUPTED)))
def test_an_interrupted_root_is_refused(write, data):
    path = write(data)
    with pytest.raises(GptError, match="interrupted trace") as caught:
        names(path)
    assert caught.value.status == 1
    found = read_used([path], True)
    assert "a" in found.names
    assert [fact.split(" (")[0] for _, fact in found.warnings] == ["interrupted trace"]


@pytest.mark.parametrize("data", TRUNCATED, ids=range(len(TRUNCATED)))
def test_a_truncated_trace_is_refused(write, data, tmp_path):
    path = write(data)
    with pytest.raises(GptError, match="truncated trace") as caught:
        names(path)
    assert caught.value.status == 1
    assert len(read_used([path], True).warnings) >= 1
    child = write(segment(records.make("child", pid=2, how="fork", path="used")), "root")
    with pytest.raises(GptError, match="truncated trace"):
        names(child)


def test_children_are_followed(write, tmp_path):
    """Traces next to the trace that names them are read, once each; others only if the user names them."""
    child = lambda path, how="fork": records.make("child", pid=2, how=how, path=path)  # noqa: E731
    root = write(segment(function("root"), child("1"), child("2"), child("root"), child(None)), "root")
    write(segment(function("one"), child("2"), child("root")), "1")
    write(segment(function("two"), child("1")), "2")
    assert names(root) == {"root", "one", "two"}
    (tmp_path / "deep").mkdir()
    other = write(segment(function("other")), "deep/3")
    root = write(segment(function("root"), child("deep/3"), child("1")), "root")
    with pytest.raises(GptError, match="absent"):
        names(root)
    assert set(read_used([root, other], False).names) == {"root", "one", "two", "other"}


def test_an_interrupted_child_is_a_warning(write):
    root = write(segment(function("root"), records.make("child", pid=2, how="fork", path="1")), "root")
    write(segment(function("one"), end=False), "1")
    found = read_used([root], False)
    assert set(found.names) == {"root", "one"}
    ((where, fact),) = found.warnings
    assert where.endswith("/1")
    assert fact.startswith("interrupted trace")


def test_output_of_gpt_extract_is_not_a_trace(write):
    """No record of gpt-extract says that a kernel was used, so all kernels would count as unused."""
    made = wire.pack(wire.header("gpt-extract", []))
    with pytest.raises(MalformedError, match="not a trace, but output of gpt-extract"):
        read_used([write(made + segment(function("a")))], allow_incomplete=True)


def test_an_absent_child_is_refused(write):
    root = write(segment(function("root"), records.make("child", pid=2, how="fork", path="gone")), "root")
    with pytest.raises(GptError, match="absent"):
        names(root)
    assert names(root, allow_incomplete=True) == {"root"}


@pytest.mark.full
def test_a_long_line_of_children(write):
    for number in range(1500):
        write(
            segment(function(str(number)), records.make("child", pid=2, how="exec", path=str(number + 1))), str(number)
        )
    write(segment(), "1500")
    assert len(names(write(segment(records.make("child", pid=1, how="exec", path="0")), "root"))) == 1500


@pytest.mark.parametrize("data", ["kernel\n", '{"detected_kernels": ["kernel"]}', segment(function("kernel"))])
def test_a_pipe_can_be_named(write, data):
    library = segment(records.make("library", path="l", size=1), records.make("library_end", path="l"))
    command = 'gpt-locate --arch sm_90 --used <(cat "$0") "$1"'
    done = run("bash", "-c", command, write(data), write(library, "stream"))
    assert done.status == (data == "kernel\n"), done.err  # for a list alone, every name must exist
    assert "used, but in no library: 'kernel'" in done.err


def test_faults_of_a_trace_end_the_stage(write):
    library = segment(records.make("library", path="l", size=1), records.make("library_end", path="l"))
    for data, options, status in (
        (INTERRUPTED[0], [], 1), (TRUNCATED[0], [], 1), (TRUNCATED[0], ["--allow-incomplete"], 0), (b"\x81\xc1", [], 3),
        (b"\x80", [], 3),
    ):  # fmt: skip
        done = run("gpt-locate", "--arch", "sm_90", "--used", write(data), *options, data=library)
        assert done.status == status, done.err
        assert done.err.startswith("gpt-locate: " + ("error: " if status else "warning: "))
        assert (b"tally" in done.out) == (status == 0)
    assert run("gpt-locate", "--arch", "sm_90", "--used", "/nowhere", data=library).status == 4
