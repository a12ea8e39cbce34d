"""A back end for a made-up machine needs only the shared code in gpt/probe, and that code doesn't know about it."""

import ast
from pathlib import Path

import pytest

from gpt.base.errors import GptError, MalformedError
from gpt.formats.params import Param
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.read.load import find_probe, load_probes, parse_toml
from gpt.probe.verify import verify
from gpt.stream import records
from gpt.stream.stage import Stage
from tests.probe.plan.echo import EchoWeaving, Listing, weave

ROOT = Path(__file__).parents[3]
LISTING = b"""
kernel copy 8 4
LOAD4 r4 r2 32
head:
@p1 LOAD8 r2 r2 8
WAIT
@!p1 JUMP head
STORE4 r2 r4 0
DONE
kernel empty 8
DONE
function helper
ADD r1 r2 r3
@p2 DONE
"""
LOADS = """
[map.loads]
level = "thread"
cap = "dynamic"
data = {address = "u64", clock = "u64", bytes = "u32"}
[probe.load]
position = "ld.global"
level = "thread"
before = ".reg .u64 %start; mov.u64 %start, CLOCK;"
after = "SAVE [loads] {ADDR, %start, BYTES};"
"""


def probe(text):
    file = parse_toml(text, "/p/loads.toml")
    verify(file)
    return file


def echo(file, kernel="copy"):
    return weave(Listing(LISTING, "toy"), kernel, [file])


def test_statements_go_to_their_places():
    file = probe(
        """
[map.m]
data = {address = "u64", bytes = "u32"}
[probe.load]
position = "ld.global"
before = ".reg .u32 %n; mov.u32 %n, BYTES; SAVE [m] {ADDR, %n};"
[probe.jump]
position = "bra"
after = ".reg .u32 %n; add.u32 %n, %n, 1;"
[probe.ends]
position = "kernel"
after = ".reg .u32 %n; add.u32 %n, %n, 2;"
[probe.label]
position = "label:h*"
before = ".reg .u32 %n; add.u32 %n, %n, 3;"
"""
    )
    woven = echo(file)
    text = [line for line in woven.data.decode().splitlines() if "%t_" not in line and "SAVE" not in line]
    assert text == [
        "kernel copy 8 4 echo_map_0",
        "+ load: before ld.global, reads ADDR BYTES, saves to m, shares %n",
        "+     mov.u32 %0_n, 4;",
        "LOAD4 r4 r2 32",
        "head:",
        "+ label: before label:h*, shares %n",
        "+     add.u32 %0_n, %0_n, 3;",
        "+ load: before ld.global, reads ADDR BYTES, saves to m, shares %n",
        "+     @p1 mov.u32 %0_n, 8;",
        "@p1 LOAD8 r2 r2 8",
        "WAIT",
        "@!p1 JUMP head",
        "+ jump: after bra, shares %n",
        "+     @p1 add.u32 %0_n, %0_n, 1;",
        "STORE4 r2 r4 0",
        "+ ends: after kernel, shares %n",
        "+     add.u32 %0_n, %0_n, 2;",
        "DONE",
        "function helper",
        "ADD r1 r2 r3",
        "+ ends: after kernel, shares %n",
        "+     @p2 add.u32 %0_n, %0_n, 2;",
        "@p2 DONE",
    ]


def test_overwritten_address_is_copied_before_the_instruction():
    woven = echo(probe(LOADS))
    text = woven.data.decode().splitlines()
    load = text.index("@p1 LOAD8 r2 r2 8")
    assert text[load - 2 : load] == ["+     @p1 mov.u64 %0_start, %clock64;", "+     mov.b64 %k_b64_0, r2;"]
    assert "+     add.s64 %t_b64_0, %k_b64_0, 0+8;" in text[load:]
    first = text.index("LOAD4 r4 r2 32")
    assert "+     add.s64 %t_b64_0, r2, 0+32;" in text[first:load]


@pytest.mark.parametrize("name", ["gmem_bytes", "sync_wait", "branch_divergence", "dmat", "warp_sched", "inst_latency"])
def test_built_in_probes_apply(name):
    woven = echo(load_probes(find_probe(name)))
    assert all(site.woven == site.matched for site in woven.sites)
    text, original = woven.data.decode().splitlines(), woven.original.decode().splitlines()
    assert original == LISTING.decode().replace("kernel empty 8\nDONE\n", "").split("\n")[1:-1]
    assert [line for line in text if line[0] != "+"] == ["kernel copy 8 4 echo_map_0", *original[1:]]
    assert len(text) > len(original)


def test_each_map_adds_a_parameter():
    woven = echo(probe(LOADS))
    assert woven.params == [Param(0, 8, None), Param(8, 4, None)]
    assert woven.added == [Param(16, 8, "u64")]
    assert woven.data.decode().startswith("kernel copy 8 4 echo_map_0\n")


def test_misfits_are_dropped_and_reported():
    file = probe(
        """
[map.m]
data = {value = "u32"}
[probe.load]
position = "ld.global"
after = "SAVE [m] {OUT};"
"""
    )
    woven = echo(file)  # the result of LOAD8 has 64 bits
    assert [(site.matched, site.woven) for site in woven.sites] == [(2, 1)]
    assert woven.misfits == ["probe 'load' at 'ld.global': an instruction OUT has 64 bits, and line 6 expects 32"]
    with pytest.raises(LeftAlone, match="no probe applies to it"):
        echo(file, "empty")


def stage(*records_, keep=()):
    weaving = EchoWeaving(Stage("gpt-echo"), [load_probes(find_probe("sync_wait"))], list(keep), [], True)
    return [out for record in records_ for out in weaving.handle(record)]


def module(data=LISTING, **more):
    return records.make("object", id=7, module="toy", arch="host", kernels=["copy", "empty"], data=data, **more)


def test_the_stage_writes_records():
    out = stage(module(), records.make("end", records=0, status=0))
    assert [record["kind"] for record in out] == ["object", "map", "kernel", "object", "kernel", "diag", "end"]
    woven, map_, kernel, rest, left, diag, _ = out
    assert all(records.check(record) is None for record in out)
    assert woven["kernels"] == ["copy"] and woven["data"].startswith(b"kernel copy 8 4 echo_map_0\n")
    assert woven["original"].startswith(b"kernel copy 8 4\n")
    assert (map_["name"], map_["level"], map_["type"]) == ("sync_wait", "warp", "array")
    assert kernel["id"] == woven["id"] and kernel["maps"] == [map_["id"]] and kernel["verified"] == 1
    assert kernel["added"] == [{"offset": 16, "size": 8, "type": "u64", "map": map_["id"]}]
    assert rest["kernels"] == ["empty"] and rest["data"].startswith(b"kernel empty 8\nDONE\n")
    assert left["name"] == "empty" and left["code"] == "no_place"
    assert diag["text"] == "left alone, no probe applies to it"


def test_the_stage_chooses_kernels_and_reports_faults():
    out = stage(module(), module(b"copy"), keep=["empty"])
    assert [record["kind"] for record in out] == ["object", "kernel", "diag", "object", "diag"]
    assert out[-1]["text"] == "no function: 'copy'" and out[-1]["level"] == "error"
    with pytest.raises(MalformedError, match="no instruction: 'HALT'"):
        weave(Listing(b"kernel k\nHALT\n", "toy"), "k", [load_probes(find_probe("sync_wait"))])
    assert issubclass(MalformedError, GptError)


def test_package_does_not_mention_the_back_end():
    """No file of the package mentions it, and it doesn't need the PTX back end."""
    for path in (ROOT / "gpt").rglob("*.py"):
        assert "EchoWeaving" not in path.read_text()
    tree = ast.parse((Path(__file__).parent / "echo.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith(("gpt.probe.ptx", "tests")) for name in imported)
