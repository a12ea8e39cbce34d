"""The table of third-party formats, which is filled when gpt.compat is imported."""

import pickle
import subprocess
import sys

import pytest

import gpt.compat  # noqa: F401 - fills the table
from gpt.base.errors import GptError
from gpt.stream import records, wire
from gpt.trace.inputs import FORMATS, expand, find_library, find_text, list_used, read_input


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_to_register_takes_no_time():
    loaded = run("import gpt.compat, sys; print(*sys.modules)").split()
    assert {*loaded} & {"json", "numpy", "subprocess", "tempfile"} == set()


def test_the_core_knows_no_format_by_itself():
    assert run("import gpt.trace.inputs as inputs, gpt.analyze.summary; print(inputs.FORMATS)") == "{}\n"


def test_a_job_of_a_cluster_brings_the_table():
    """A worker has imported nothing yet, so unpickling a job must register the formats."""
    carried = pickle.dumps(tuple(FORMATS.values()))
    code = f"import pickle, gpt.trace.inputs as i; i.register(*pickle.loads({carried!r})); print(*i.FORMATS)"
    assert run(code).split() == list(FORMATS)


def test_a_stream_is_not_taken_for_another_format(tmp_path):
    path = tmp_path / "t.mp"
    data = wire.pack(records.make("end", records=0, status=0))
    path.write_bytes(data)
    assert find_text(data) is None and find_library(path) is None
    assert list(read_input(path, lambda one: iter([{"read": one}]))) == [{"read": path}]


def test_unknown_text_is_read_as_a_list_of_names(tmp_path):
    assert list_used(b"kernel\n", tmp_path) is None and find_text(b"kernel\n") is None


def test_folder_is_read_once_it_is_a_trace(tmp_path):
    with pytest.raises(GptError, match="neither a Neutrino trace folder nor a folder of them"):
        expand([tmp_path])
    (tmp_path / "event.log").touch()
    assert expand([tmp_path]) == [tmp_path]


def test_python_begins_with_all_formats(tmp_path):
    """`gpt.trace.open` registers them as the executables do."""
    (tmp_path / "event.log").write_text("[pid] 7\n[mem] cuMemAlloc_v2 0 4096\n")
    assert run(f"import gpt.trace; print([one.pid for one in gpt.trace.open({str(tmp_path)!r}).processes])") == "[7]\n"
