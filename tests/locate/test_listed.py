"""Hand-written lists of kernel names: what the names mean, and that a wrong name doesn't empty a library."""

import json
import subprocess

import pytest

from gpt.locate import holding
from gpt.locate.listed import Listed, forms, function_of
from gpt.stream import records, wire
from tests.stages.tools import run

KERNELS = {
    "a.so": ["_Z3onePf", "_ZN2ns3twoIfEEvPT_", "plain"],
    "b.so": ["_ZN2ns3twoIiEEvPT_", "_ZN12_GLOBAL__N_15threeEii", "_Z3onePf"],
}


def library(path, kernels=None, functions=()):
    """Make a library with an element of these kernels, and an element whose kernels are never used."""
    found = [records.make("library", path=path, size=400)]
    for number, names in enumerate((KERNELS.get(path, ()) if kernels is None else kernels, ["never_used_at_all"])):
        found.append(
            records.make(
                "element", library=path, section=".nv_fatbin", region=0, index=number, type="cubin", arch="sm_90",
                offset=100 * number, header_size=64, payload_size=36, size=36, codec="none", flags=0, variables=0,
                kernels=[{"name": name} for name in names], functions=[{"name": name} for name in functions],
            )
        )  # fmt: skip
    return [*found, records.make("library_end", path=path)]


def segment(*inner, end=True):
    found = [wire.header("t", []), *inner]
    found += [records.make("end", records=len(inner), status=0)] if end else []
    return b"".join(map(wire.pack, found))


BOTH = segment(*library("a.so"), *library("b.so"))


@pytest.fixture
def locate(tmp_path):
    def call(names, *options, data=BOTH, files=()):
        (tmp_path / "names.txt").write_bytes(names.encode())
        devices = () if "--arch" in options else ("--arch", "sm_90")
        return run("gpt-locate", "--used", "names.txt", *devices, *options, *files, data=data, cwd=tmp_path)

    return call


def cut(done):
    """Return the spans of each library, in stream order."""
    found = {}
    for record in done.records:
        if record["kind"] == "library":
            found[record["path"]] = []
        elif record["kind"] == "span":
            found[record["library"]].append(record["start"])
    return found


def test_names_that_are_all_there(locate):
    done = locate("\ufeff# all\r\n_Z3onePf \r\n\tplain\n\n_ZN2ns3twoIiEEvPT_\n")
    assert (done.status, done.err) == (0, "")
    assert cut(done) == {"a.so": [164], "b.so": [164]}


@pytest.mark.parametrize(
    ("names", "facts"),
    [
        ("_Z3onePf\n_Z3onePd\n", ["used, but in no library: '_Z3onePd' (did you mean '_Z3onePf'?)"]),
        ("_Z3onePf\nTHREE\n", ["used, but in no library: 'THREE'"]),
        ("plain\nplian", ["used, but in no library: 'plian' (did you mean 'plain'?)"]),
        ("helper", ["used, but in no library: 'helper' ('helper' is a device function)"]),
        ("x1\nx2\nx3\nx4\nx5", ["used, but in no library: 'x1', 'x2', 'x3' and 2 more"]),
        ("two", ["'two' matches 2 kernels: '_ZN2ns3twoIfEEvPT_', '_ZN2ns3twoIiEEvPT_'"]),
        ("ns::two\nx", [
            "'ns::two' matches 2 kernels: '_ZN2ns3twoIfEEvPT_', '_ZN2ns3twoIiEEvPT_'", "used, but in no library: 'x'",
        ]),
        ("y" * 200, [f"used, but in no library: '{'y' * 100}...'"]),
    ],
)  # fmt: skip
def test_a_wrong_name_cuts_nothing(locate, names, facts):
    data = segment(*library("a.so", functions=["helper"]), *library("b.so"))
    done = locate(names, data=data)
    assert done.status == 1
    end = ": nothing is cut without --allow-missing"
    assert done.err.splitlines() == [f"gpt-locate: error: names.txt: {fact}{end}" for fact in facts]
    assert [(r["level"], r["where"], r["text"]) for r in done.kind("diag")] == [
        ("error", "names.txt", fact + end) for fact in facts
    ]
    assert not {"span", "trim", "tally"} & {r["kind"] for r in done.records}
    kept = [r for r in done.records if r["kind"] not in ("diag", "header", "end")]
    assert b"".join(map(wire.pack, kept)) == b"".join(
        map(wire.pack, (*library("a.so", functions=["helper"]), *library("b.so")))
    )
    assert done.kind("end")[0]["records"] == len(done.records) - 2

    done = locate(names, "--allow-missing", data=data)
    assert done.status == 0
    assert done.err.splitlines() == [f"gpt-locate: warning: names.txt: {fact}" for fact in facts]
    assert cut(done)["a.so"][-1] == 164


@pytest.mark.parametrize(
    "name",
    [
        "_ZN2ns3twoIfEEvPT_", "void ns::two<float>(float*)", "void  ns::two < float > ( float * )", "ns::two<float>",
        "ns::two<float>(float*)", "void ns::two<float>", "(anonymous namespace)::three(int, int)", "three", "one",
        "one(float*)",
    ],
)  # fmt: skip
def test_demangled_name_matches_one_kernel(locate, name):
    done = locate(name)
    assert (done.status, done.err) == (0, "")
    spans = cut(done)
    assert (0 + 64 not in spans["a.so"]) == ("three" not in name)
    assert (0 + 64 not in spans["b.so"]) == ("three" in name or name.startswith("one"))


def test_exact_name_wins_over_abbreviation(locate):
    done = locate("two", data=segment(*library("a.so"), *library("c.so", ["two"])))
    assert (done.status, done.err) == (0, "")
    assert 64 not in cut(done)["c.so"]


def test_names_of_several_streams(locate, tmp_path):
    for name in KERNELS:
        (tmp_path / f"{name}.mp").write_bytes(segment(*library(name)))
    names = "plain\n_ZN12_GLOBAL__N_15threeEii\n"
    done = locate(names, files=["a.so.mp", "b.so.mp"])
    assert (done.status, cut(done)) == (0, {"a.so": [164], "b.so": [164]})
    assert [r["records"] for r in done.kind("end")] == [len(library("a.so")) + 3] * 2  # plus a span and two tallies
    assert locate(names, files=["b.so.mp"]).status == 1


def test_sync_is_answered_with_known_records(locate):
    sync = records.make("sync", id=7)
    data = segment(*library("a.so"), sync, *library("b.so"))
    done = locate("plain", data=data)
    assert (done.status, cut(done)) == (0, {"a.so": [164], "b.so": [64, 164]})
    done = locate("_ZN2ns3twoIiEEvPT_\n", data=data)
    assert (done.status, cut(done)) == (1, {"a.so": [], "b.so": [164]})
    kinds = [r["kind"] for r in done.records]
    assert kinds.index("library_end") < kinds.index("sync") < kinds.index("span")
    assert done.err.count("\n") == 1


def test_truncated_stream_gets_no_spans(locate):
    data = segment(*library("a.so"), *library("b.so"))
    done = locate("_ZN2ns3twoIiEEvPT_\n", data=data[:-300])
    assert done.status == 3
    assert len(done.err.splitlines()) == 1 and "bytes into a record" in done.err
    assert cut(done)["a.so"] == []


def test_files_of_spans_are_held_back_too(locate, tmp_path):
    def spans():
        return {path.name: json.loads(path.read_text())["spans"] for path in (tmp_path / "spans").glob("*")}

    assert locate("plain\nnot this", "--spans-json", "spans").status == 1
    assert spans() == {}
    assert locate("ns::two<int>", "--spans-json", "spans").status == 0
    assert [len(found) for found in spans().values()] == [2, 1] or [len(found) for found in spans().values()] == [1, 2]


def test_kernels_of_a_demangled_name_are_not_trimmed(locate):
    done = locate("ns::two<float>", "--granularity", "kernel")
    assert [(r["library"], r["kernels"]) for r in done.kind("trim")] == [("a.so", ["_Z3onePf", "plain"])]


def test_more_is_held_than_fits_into_memory(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(holding, "SPOOL", 1000)
    stage = holding.Holding("test", json=True)
    written = [records.make("diag", level="warning", where=str(i), text="x") for i in range(100)]
    stage.hold()
    for record in written:
        stage.write(record)
        stage.write(holding.Added(record))
    stage.flush()
    assert capfd.readouterr().out == ""
    stage.release()
    stage.flush()
    assert [json.loads(line)["where"] for line in capfd.readouterr().out.splitlines()] == [
        str(i) for i in range(100) for _ in range(2)
    ]


def test_json_stays_what_it_was(locate):
    strange = [{"kind": "x-mine", "n": 1 << 60, "b": b"\xff", "f": float("inf")}]
    data = segment(*library("a.so"), *strange, *library("b.so"))
    done = locate("nothing like it", data=data)
    assert [r for r in done.records if r["kind"] == "x-mine"] == strange


@pytest.mark.full
def test_patch_writes_nothing_for_a_wrong_name(tmp_path):
    from tests.demo.build import build

    demo = build(tmp_path / "demo")
    (tmp_path / "names.txt").write_text("matrixMulGpu\n")
    script = "gpt-extract demo/libdemo.so | gpt-locate --used names.txt --arch sm_90 | gpt-patch -o slim"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"did you mean '_Z12matrixMulGPUPKfS0_Pfi'?" in done.stderr
    assert not list((tmp_path / "slim").iterdir())
    (tmp_path / "names.txt").write_text("matrixMulGPU\n")
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False).stderr == b""
    assert (tmp_path / "slim" / "libdemo.so").stat().st_size < demo.stat().st_size


def test_short_names_match_full_signatures():
    assert forms("void ns::k<a<(b)1>, (3>2)>(float*, void (*)(int))") >= {
        "void ns::k<a<(b)1>,(3>2)>(float*,void(*)(int))",
        "ns::k<a<(b)1>,(3>2)>(float*,void(*)(int))",
        "void ns::k<a<(b)1>,(3>2)>",
    }
    assert forms("plain") == {"plain"}
    for name, function in {
        "_Z3onePf": "one", "_ZN2ns3twoIfEEvPT_": "two", "_ZN12_GLOBAL__N_15threeEii": "three", "_ZSt4swapv": "swap",
        "_ZL6staticv": "static", "_Z": "_Z", "_Z99x": "x", "plain": "plain", "": "", "void a::b<c>(d)": "b",
        "(anonymous namespace)::k(int)": "k", "+": "+", "_ZN": "_ZN",
    }.items():  # fmt: skip
        assert function_of(name) == function


@pytest.mark.full
def test_names_made_to_take_long(tmp_path):
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    evil = "_Z1fSt4pairIiiE" + "".join(f"S_IS{d}_S{d}_E" for d in digits)
    names = {f"name {number} f": "list" for number in range(1000)}
    listed = Listed(names)
    maybe = listed.look({evil, "_Z1fv", "_Z" + "9" * 5000, "_Z" + "1a" * 5000}, set())
    assert listed.fit(maybe) == set()
    assert len(listed.faults()) == 1


def test_devices_that_no_code_is_for_cut_nothing(locate):
    fact = "--arch: no code for sm_52 or sm_120: there is cubin for sm_90"
    done = locate("plain\n", "--arch", "sm_52,12.0")
    assert (done.status, done.err) == (1, f"gpt-locate: error: {fact}: nothing is cut without --allow-missing\n")
    assert not done.kind("span") and len(done.kind("element")) == 4
    done = locate("plain\n", "--arch", "sm_52,12.0", "--allow-missing")
    assert (done.status, done.err) == (0, f"gpt-locate: warning: {fact}\n") and len(done.kind("span")) == 4
    done = locate("plain\n", "--arch", "sm_52,9.0,sm_120")  # one of the devices has some
    assert (done.status, done.err) == (0, f"gpt-locate: warning: {fact}\n") and done.kind("span")
    assert locate("plain\n", "--arch", "9.0").err == ""
