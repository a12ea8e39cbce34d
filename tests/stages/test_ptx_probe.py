"""gpt-ptx-probe as a user runs it."""

import os
import pty
import subprocess

import pytest

from gpt.probe.ptx.weave import unweave
from gpt.ptx.prune import prune
from gpt.ptx.scan import scan_module
from gpt.stream import records, wire
from gpt.stream.reasons import Reason, find_reason
from tests import cuda
from tests.stages.tools import run

SOURCE = """
extern "C" __global__ void copy(int *x, const int *y) { x[threadIdx.x] = y[threadIdx.x]; }
extern "C" __global__ void fill(int *x, int y) { x[threadIdx.x] = y; }
extern "C" __global__ void none() {}
"""
PROBE = '[loads]\nposition = "ld.global"\ndatamodel = "thread:8"\nbefore = "SAVE.u64 {ADDR};"\n'


@pytest.fixture(scope="module")
def text():
    return cuda.nvrtc_compile(SOURCE, "compute_75")


@pytest.fixture
def probe_file(tmp_path):
    path = tmp_path / "loads.toml"
    path.write_text(PROBE)
    return path


def segment(*texts):
    found = [wire.header("test", [])]
    for number, data in enumerate(texts):
        kernels = [item.name for item in scan_module(data).entries] if b".entry" in data else []
        found.append(records.make("ptx", id=5 + number, module=f"m#{number}", arch="sm_75", kernels=kernels, data=data))
    found.append(records.make("end", records=0, status=0))
    return b"".join(map(wire.pack, found))


def weave(*options, data, status=0):
    done = run("gpt-ptx-probe", *options, data=data)
    assert done.status == status, done.err
    return done


def test_each_kernel_alone_with_its_maps(text, probe_file):
    done = weave("-p", probe_file, data=segment(text))
    assert done.err.splitlines() == ["gpt-ptx-probe: warning: fill, none: left alone, no probe applies to it"]
    woven, left = done.kind("ptx")
    assert (woven["id"], woven["kernels"], left["id"], left["kernels"]) == (0, ["copy"], 1, ["fill", "none"])
    module = scan_module(text)
    assert woven["original"] == prune(module, ["copy"]) == unweave(woven["data"])
    assert left["data"] == prune(module, ["fill", "none"])
    (map_,) = done.kind("map")
    assert (map_["name"], map_["type"], map_["level"]) == ("loads", "array", "thread")
    assert (map_["capacity"], map_["stride"]) == (1, 8)
    assert map_["fields"] == [{"name": "addr", "type": "u64", "offset": 0}]
    copy, fill, none = done.kind("kernel")
    assert copy["params"] == [{"offset": at, "size": 8, "type": "u64"} for at in (0, 8)]
    assert copy["added"] == [{"offset": 16, "size": 8, "type": "u64", "map": map_["id"]}]
    assert copy["maps"] == [map_["id"]] and copy["verified"] == 1
    assert copy["sites"] == [{"probe": "loads.loads", "position": "ld.global", "matched": 1, "woven": 1}]
    assert fill["id"] == none["id"] == 1 and fill["code"] == none["code"] == "no_place"
    assert "maps" not in fill


def test_maps_say_which_file_is_to_be_run(tmp_path, text, probe_file):
    (tmp_path / "run.py").touch()
    for callback, found in (("run.py", str(tmp_path / "run.py")), ("loads", None), ("absent.py", None)):
        probe_file.write_text(f'callback = "{callback}"\n{PROBE}')
        (map_,) = weave("-p", probe_file, data=segment(text)).kind("map")
        assert map_.get("callback") == found


VARIABLES = """
__device__ int total; __constant__ int factors[8]; __device__ int *where = &total; __constant__ int *also = &total;
__device__ __noinline__ int next(int by) { return atomicAdd(&total, by); }
extern "C" __global__ void sum(int *x) { *where = next(x[1] * factors[x[0]]) + *also; }
extern "C" __global__ void alone(int *x) { *x = *x + 1; }
"""


def test_variables_of_the_module(probe_file):
    text = cuda.nvrtc_compile(VARIABLES, "compute_75")
    done = weave("-p", probe_file, data=segment(text))
    sum_, alone = done.kind("kernel")
    assert sum_["table"] == "gpt_variables" and not {"table", "variables"} & alone.keys()
    assert records.check(sum_) is None
    found = {variable.pop("name"): variable for variable in sum_["variables"]}
    assert found == {
        "total": {"space": "global", "size": 4, "offset": 0},
        "where": {"space": "global", "size": 8, "offset": 8},
        "factors": {"space": "const", "size": 32, "copy": "taken"},
        "also": {"space": "const", "size": 8, "copy": "always"},
    }
    woven = done.kind("ptx")[0]
    assert unweave(woven["data"]) == woven["original"]


def test_on_a_terminal_there_is_a_table(probe_file, tmp_path):
    text = cuda.nvrtc_compile(VARIABLES + 'extern "C" __global__ void none() {}', "compute_75")
    (tmp_path / "in.mp").write_bytes(segment(text))
    master, slave = pty.openpty()
    command = ["gpt-ptx-probe", "-p", probe_file, tmp_path / "in.mp"]
    subprocess.run(command, stdout=slave, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "dumb"}, check=True)
    os.close(slave)
    rows = [line.split() for line in os.read(master, 1 << 16).decode().splitlines()]
    os.close(master)
    assert rows[0] == ["kernel", "places", "woven", "maps", "variables"]
    assert rows[1][0] == "sum" and rows[1][3:] == ["1", "4"]
    assert rows[2] == ["alone", "1", "1", "1", "0"]
    assert rows[3] == ["none:", "no", "probe", "applies", "to", "it"]


def test_built_in_probes_and_names(text):
    done = weave("-p", "block_sched", "-p", "gmem_bytes", "-k", "cop:fil", data=segment(text, text))
    assert [record["kernels"] for record in done.kind("ptx")] == [["copy"], ["fill"]] * 2
    assert [record["id"] for record in done.kind("map")] == list(range(8))
    assert [record["maps"] for record in done.kind("kernel")] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    done = weave("-p", "block_sched", "-p", "block_sched", "--filter", "fill:none", data=segment(text))
    assert [record["kernels"] for record in done.kind("ptx")] == [["copy"]] and len(done.kind("map")) == 1


def test_nothing_matches(text, tmp_path):
    path = tmp_path / "wgmma.toml"
    path.write_text(PROBE.replace('"ld.global"', '"wgmma:ld.const"'))
    done = weave("-p", path, data=segment(text), status=1)
    assert f"gpt-ptx-probe: error: {path}: matches nothing: 'wgmma:ld.const'" in done.err.splitlines()
    (left,) = done.kind("ptx")
    assert left["data"] == text and len(done.kind("kernel")) == 3
    assert any(record["text"].startswith("matches nothing") for record in done.kind("diag"))
    done = weave("-p", path, "-p", "block_sched", data=segment(text))
    assert f"gpt-ptx-probe: warning: {path}: matches nothing: 'wgmma:ld.const'" in done.err.splitlines()
    done = weave("-p", path, "-k", "absent", data=segment(text), status=1)
    fact = "--kernel and --filter leave no kernel: there are copy, fill, none"
    assert done.err == f"gpt-ptx-probe: error: {fact}\n" and not done.kind("ptx")
    done = weave("-p", "block_sched", "-k", "fill", data=segment(text.replace(b"fill", b"full"), text))
    assert done.err == "" and done.kind("ptx")


def test_counted_only(text, probe_file):
    done = weave("-p", probe_file, "--count", "-k", "copy", data=segment(text))
    (map_,) = done.kind("map")
    (woven,) = done.kind("ptx")
    assert map_["capacity"] == 0 and b"st.global.b64" not in woven["data"]


def test_unproved_probe(text, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[bad]\nposition = "ld.global"\nbefore = "mov.u32 %r1, 0;"\n')
    done = weave("-p", path, data=segment(text), status=1)
    fact = "register '%r1' is not declared in the probe, which can't use the program's"
    assert done.err == f"gpt-ptx-probe: error: {path}:3: probe 'bad': {fact}\n"
    done = weave("-p", path, "--no-verify", "-k", "copy", data=segment(text))
    assert done.kind("kernel")[0]["verified"] == 0
    assert b"mov.u32 %r1, 0; //@ " in done.kind("ptx")[0]["data"]


@pytest.mark.parametrize(
    ("options", "status", "fact"),
    [
        ([], 2, "-p PROBE is required"),
        (["-p", "no_such_probe"], 4, "no such probe file"),
        (["-p", "torn.toml"], 3, "TOML"),
        (["-p", "dmat", "-p", "dmat.py"], 2, "rename one"),
    ],
)
def test_probes_that_cannot_be_had(options, status, fact, tmp_path):
    (tmp_path / "torn.toml").write_text("[x\n")
    (tmp_path / "dmat.py").write_text("")
    done = run("gpt-ptx-probe", *options, data=segment(), cwd=tmp_path)
    assert done.status == status and done.err.count("\n") == 1 and fact in done.err


def test_a_file_under_two_names_is_one(text, tmp_path):
    (tmp_path / "mine.toml").write_text(PROBE)
    done = run("gpt-ptx-probe", "-p", "mine.toml", "-p", tmp_path / "mine.toml", data=segment(text), cwd=tmp_path)
    alone = run("gpt-ptx-probe", "-p", "mine.toml", data=segment(text), cwd=tmp_path)
    assert done.status == 0 and done.records[1:] == alone.records[1:] and done.kind("map")


def test_too_large_kernel_is_unchanged(text, tmp_path):
    loads = "ld.global.u32 %r1, [%rd1];\n" * 3000
    head = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry large() {\n"
    large = f"{head}.reg .b32 %r<2>; .reg .b64 %rd<2>;\n{loads}ret;\n}}\n".encode()
    path = tmp_path / "long.toml"
    path.write_text(PROBE.replace("SAVE", "mov.u64 %NR0, 1; " * 500 + "SAVE"))
    done = weave("-p", path, data=segment(large, text))
    assert [find_reason(record) for record in done.kind("kernel")][:2] == [
        Reason("too_large", "more than 62 MiB"),
        None,
    ]
    assert done.kind("ptx")[0]["data"] == large and "matches nothing" not in done.err


@pytest.mark.parametrize(
    ("facts", "kernels", "code"),
    [
        ({"type": "elf", "path": "libcublas.so.13"}, [], "closed_library"),
        ({"type": "elf", "soname": "libcublas.so.13"}, [], "closed_library"),
        ({"type": "elf"}, ["_ZN6cublas4gemvEv"], "closed_library"),
        ({"type": "ptx"}, ["_ZN6cublas4gemvEv"], None),  # anybody may write a kernel with this name
        ({"type": "elf"}, [], None),
    ],
    ids=["file name", "soname", "kernel", "bare PTX", "open"],
)
def test_closed_libraries_get_no_probes(text, probe_file, facts, kernels, code):
    library = records.make("library", size=1, **{"path": "lib/libmine.so"} | facts)
    module = f"{library['path']}#0"
    names = [item.name for item in scan_module(text).entries]
    found = records.make("ptx", id=0, module=module, arch="sm_75", kernels=[*names, *kernels], data=text)
    ends = wire.header("test", []), records.make("end", records=2, status=0)
    done = weave("-p", probe_file, data=b"".join(map(wire.pack, (ends[0], library, found, ends[1]))))
    codes = {record["name"]: record.get("code") for record in done.kind("kernel")}
    assert set(codes.values()) >= {code} and (code is None or set(codes.values()) == {code})
    assert bool(done.kind("map")) == (code is None)
    if code:
        assert [record["data"] for record in done.kind("ptx")] == [text]


def test_unweavable_match_is_not_reported_as_no_match(text, tmp_path):
    path = tmp_path / "out.toml"
    path.write_text(PROBE.replace("ADDR", "IN4"))
    done = weave("-p", path, data=segment(text))
    assert "an instruction has no IN4" in done.err and "matches nothing" not in done.err


def test_malformed_module_passes_and_the_rest_is_processed(text, probe_file):
    torn = text[: text.index(b"ret;")]
    done = weave("-p", probe_file, "-k", "copy", data=segment(b".version 8.0\n.target sm_75\n}", text), status=3)
    assert "error: m#0:3:1: PTX: unexpected '}'" in done.err
    first, second = done.kind("ptx")
    assert first["data"].endswith(b"}") and second["kernels"] == ["copy"]
    assert (first["id"], second["id"]) == (0, 1) and first.keys() == second.keys() - {"original"}
    strange = text.replace(b"ld.global.u32", b"ld.global.u32 ?", 1)
    for data in (torn, strange):
        done = run("gpt-ptx-probe", "-p", probe_file, data=segment(data) if data is strange else segment(text)[:-40])
        assert done.status == 3 and "Traceback" not in done.err and "error: " in done.err


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        ("}", "m#0:3:1: PTX: unexpected '}'"),
        (".entry k() { @@; ret; }", "m#0:3:14: PTX: unexpected '@'"),
        (".entry k(.param .u64 a, ,) { ret; }", "m#0:3:25: PTX: unexpected ','"),
        (".entry k(.param .align 0 .b8 a[4]) { ret; }", "m#0:3:1: PTX: '.param .align 0 .b8 a[4]' has no"),
    ],
)  # fmt: skip
def test_malformed_modules_give_one_line(body, fact):
    done = weave("-p", "block_sched", data=segment(f".version 8.0\n.target sm_75\n{body}".encode()), status=3)
    assert done.err.startswith(f"gpt-ptx-probe: error: {fact}") and done.err.count("\n") == 1
    (passed,) = done.kind("ptx")
    assert body.encode() in passed["data"]


def test_a_module_without_kernels_passes(text, probe_file):
    functions = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .func f() { ret; }\n"
    done = weave("-p", probe_file, data=segment(functions, text))
    assert [(record["id"], record["kernels"]) for record in done.kind("ptx")] == [
        (0, []),
        (1, ["copy"]),
        (2, ["fill", "none"]),
    ]
    assert done.kind("ptx")[0]["data"] == functions
    done = weave("-p", probe_file, data=segment(functions))
    assert len(done.kind("ptx")) == 1 and done.err == "gpt-ptx-probe: warning: no kernel\n"
    assert not weave("-p", probe_file, "-k", "copy", data=segment(functions)).kind("ptx")


def test_the_whole_pipeline(text, probe_file, tmp_path):
    (tmp_path / "k.ptx").write_bytes(text)
    found = run("gpt-extract", "--ptx", tmp_path / "k.ptx")
    woven = run("gpt-ptx-probe", "-p", "block_sched", "-p", probe_file, data=found.out)
    done = run("gpt-asm", "--arch", "sm_75", "--compare", data=woven.out)
    assert done.status == 0, done.err
    assert len(done.kind("cubin")) == 3
    needs = [record for record in done.kind("kernel") if "registers" in record]
    assert len(needs) == 3 and all(record["registers"] >= record["registers_before"] for record in needs)


ELSEWHERE = """
extern "C" __device__ int elsewhere(int x);
extern "C" __global__ void far(int *x) { x[0] = elsewhere(x[1]); }
extern "C" __global__ void near(int *x) { x[0] = x[1]; }
"""


def test_kernel_with_external_reference_needs_linking(probe_file):
    data = segment(cuda.nvrtc_compile(ELSEWHERE, "compute_75", ["-rdc=true"]))
    done = weave("-p", probe_file, data=data)
    reason = "it needs a function that is defined elsewhere: 'elsewhere' (-c weaves it, for gpt-asm -c)"
    assert done.err.splitlines() == [f"gpt-ptx-probe: warning: far: left alone, {reason}"]
    woven, left = done.kind("kernel")
    assert (woven["name"], left["name"], str(find_reason(left))) == ("near", "far", reason)
    done = weave("-p", probe_file, "-c", data=data)
    assert not done.err and ["maps" in kernel for kernel in done.kind("kernel")] == [True, True]
    asm = run("gpt-asm", "--arch", "sm_75", "--no-cache", data=done.out)
    assert "Unresolved extern function 'elsewhere' (-c makes relocatable code)" in asm.err and asm.status == 3
    asm = run("gpt-asm", "--arch", "sm_75", "--no-cache", "-c", data=done.out)
    assert asm.status == 0 and len(asm.kind("cubin")) == 2


def test_a_probe_is_shown(probe_file, tmp_path):
    shown = run("gpt-ptx-probe", "-p", probe_file, "--show")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.decode().splitlines()[-4:] == [
        "[probe.loads]",
        'position = "ld.global"',
        'level = "thread"',
        'before = "SAVE [loads] {ADDR};"',
    ]
    again = tmp_path / "again.toml"
    again.write_bytes(shown.out)
    assert run("gpt-ptx-probe", "-p", again, "--show").out == shown.out
    two = run("gpt-ptx-probe", "-p", probe_file, "-p", "dmat", "--show").out.decode()
    assert two.startswith(f"# {probe_file}\n{shown.out.decode()}# ") and two.count("dmat.toml\n") == 1


@pytest.mark.full
def test_show_refuses_invalid_probes_and_streams(probe_file, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text(PROBE.replace("SAVE", "ret; SAVE"))
    refused = run("gpt-ptx-probe", "-p", bad, "--show")
    assert (refused.status, refused.out) == (1, b"") and "'ret' is not allowed" in refused.err
    assert b"ret;\nSAVE [loads] {ADDR};" in run("gpt-ptx-probe", "-p", bad, "--show", "--no-verify").out
    stream = run("gpt-ptx-probe", "-p", probe_file, "--show", "in.mp")
    assert (stream.status, stream.err) == (2, "gpt-ptx-probe: error: in.mp: --show reads no stream\n")
    for option in ("--json", "--table", "--count", "-c", "--kernel=k"):
        other = run("gpt-ptx-probe", "-p", probe_file, "--show", option)
        assert (other.status, other.out) == (2, b"") and "--show can be combined with" in other.err


@pytest.mark.parametrize(
    ("attributes", "cluster"),
    [(".reqnctapercluster 2, 3\n.blocksareclusters", [2, 3, 1]), (".reqnctapercluster 2, 3", None)],
)
def test_grid_in_clusters(attributes, cluster):
    text = f"""
.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
.reqntid 32, 1, 1
{attributes}
{{ ret; }}
""".encode()
    (kernel,) = weave("-p", "block_sched", data=segment(text)).kind("kernel")
    assert kernel.get("cluster") == cluster
