"""Every built-in probe in every kernel: the result assembles, spills no more than before, and the probe can be removed
again.

The kernels come from this folder and tests/gpu; many more are in tests/tally.
"""

import itertools
import re
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from gpt.probe import verify
from gpt.probe.ptx.weave import LeftAlone, unweave, weave
from gpt.probe.read import load
from gpt.ptx import scan
from gpt.ptx.prune import prune
from tests import cuda
from tests.probe.ptx.woven import kernel as make_kernel
from tests.tiers import full

HERE = Path(__file__).parent
SOURCES = [HERE / "tensor.cu", HERE.parents[1] / "gpu" / "weave.cu", HERE.parents[1] / "gpu" / "variables.cu"]
PROBES = {path.stem: load.load_probes(path) for path in sorted(load.BUILTIN.glob("*.toml"))}
ARCHS = {"sm_75": "compute_75", "sm_90": "compute_90", "sm_90a": "compute_90a", "sm_100a": "compute_100a"}
NEWEST = b".version 9.0"  # the newest version that the tests' ptxas knows


@cache
def kernels(arch):
    """Return the kernels of the sources, each pruned to what it needs."""
    found = {}
    for source in SOURCES:
        module = scan.scan_module(cuda.nvrtc_compile(source.read_text(), ARCHS[arch]), source.name)
        found |= {entry.name: prune(module, [entry.name]) for entry in module.entries}
    return found


def assemble(data, arch, folder):
    """Return the registers and spilled bytes of all functions, as ptxas reports them."""
    text = folder / f"{abs(hash(data))}.ptx"
    text.write_bytes(data)
    command = [cuda.tool("ptxas"), f"-arch={arch}", "-v", text, "-o", text.with_suffix(".cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    return max(registers), sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))


def woven(data, kernel, file):
    """Return the kernel with probes, or None if they don't apply to it."""
    try:
        found = weave(data, kernel, [file])
    except LeftAlone as error:
        assert error.fact.startswith("no probe applies to it")
        return None
    assert unweave(found.data) == data
    return found


WAITING = b""".version 8.0
.target sm_90a
.address_size 64
.visible .entry waits(.param .u64 p)
{
.reg .u64 %a; .reg .u32 %t;
ld.param.u64 %a, [p];
ld.global.u32 %t, [%a];
bar.sync 0;
st.global.u32 [%a+4], %t;
ret;
}
"""  # What ptxas schedules around a barrier depends on nothing else.


MASKED = WAITING.replace(b"bar.sync 0;", b"activemask.b32 %t;\nbar.sync 0;\nactivemask.b32 %u;\nadd.u32 %t, %t, %u;")
MASKED = MASKED.replace(b"%t;", b"%t, %u;", 1)  # its declaration


def opcodes(name, kernel=WAITING):
    """Return the opcodes in the machine code of a kernel with a probe, in order."""
    told = cuda.disassemble(cuda.assemble(woven(kernel, "waits", PROBES[name]).data, "sm_90a"))
    return re.findall(r"^\s+/\*\w{4}\*/\s+(?:@!?U?P\w+ )?(.*?) ?;", told, re.M)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        pytest.param("sync_wait", WAITING, id="sync_wait-waiting"),
        pytest.param("warp_ranges", MASKED, id="warp_ranges-masked"),
        full("sync_wait", MASKED, id="sync_wait-masked"),
        full("warp_ranges", WAITING, id="warp_ranges-waiting"),
    ],
)
def test_clock_after_barrier_is_read_when_the_warp_continues(name, kernel):
    """On an H200, a clock read right after BAR.SYNC is read before the warp waits (tests/gpu/sync_wait.py). So there
    are two readings, and bits of the first are counted before the second.
    """
    code = opcodes(name, kernel)
    at = next(i for i, text in enumerate(code) if text.startswith("BAR.SYNC"))
    kinds = [re.sub("[^A-Z].*", "", text) if "CLOCK" not in text else "clock" for text in code]
    assert "clock" in kinds[:at]
    after = [kind.removeprefix("U") for kind in kinds[at:] if kind in ("clock", "POPC", "UPOPC")]
    assert after[:3] == ["clock", "POPC", "clock"]


def test_an_exit_of_block_sched_stores_little_and_knows_its_place_from_the_entry():
    code = opcodes("block_sched")
    last = max(i for i, text in enumerate(code) if "CLOCK" in text)
    assert not any("CTAID" in text for text in code[last:])
    assert sorted(text.split()[0] for text in code[last:] if text.startswith(("RED", "ATOM", "STG"))) == [
        "REDG.E.MAX.64.STRONG.GPU",
        "STG.E.128",
        "STG.E.64",
    ]


def test_ptxas_does_not_add_up_over_the_lanes_what_one_lane_adds():
    code = opcodes("gmem_bytes")
    first = min(i for i, text in enumerate(code) if text.startswith("RED"))
    assert not any("LANEID" in text or "UFLO" in text for text in code[first - 12 :])


def test_probes_are_proved_harmless_and_documented():
    page = (HERE.parents[2] / "man/man1/gpt-ptx-probe.1").read_text()
    listed = page.partition(".Sh BUILT-IN PROBES")[2].partition(".Sh WEAVING")[0]
    assert re.findall(r"^\.It Li (\w+)", listed, re.M) == list(PROBES)
    assert "program_progress" in PROBES
    for name, file in PROBES.items():
        verify.verify(file)
        head = re.match(r"(# .*\n|#\n)+", file.source)
        assert head, name
        for word in ("measures", "unit", "cost"):
            assert f"# {word} " in head[0], name
        assert file.callback == ("timeline" if name == "warp_ranges" else name)


NUMBERS = {"two": 2, "three": 3, "five": 5}
PLACES = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .pred %p<2>; .reg .b32 %r<9>; .reg .f32 %f<3>; .reg .b64 %rd<3>;
    ld.global.u32 %r1, [%rd1];
    ld.shared.u32 %r2, [%r1];
    add.f32 %f1, %f1, %f2;
    bar.sync 0;
    mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r3, %r4}, {%r5}, {%r1, %r2};
    bra L;
L:
    ret;
}
"""


@pytest.mark.parametrize("name", PROBES)
def test_the_stores_that_a_head_speaks_of(name):
    """Additions to a count are included. Claiming room in a log, which happens in a function, and storing values that
    differ between lanes aren't.
    """
    told = re.search(r"(two|three|five) stores", PROBES[name].source.replace("\n#          ", ""))
    text = weave(PLACES, "k", [PROBES[name]]).data.decode()
    places = re.findall(r"(?:\n[^\n]*//@[^\n]*)+", text)
    shared = r"st\.global\.cs\S* \[\S+\+(?:\d|[12]\d)\]"  # the first 32 bytes of a record
    counted = shared if '"dynamic"' in PROBES[name].source else r"(?:st|red)\.global"
    made = [len(re.findall(counted, place)) for place in places if ".func" not in place]
    assert told or 'type = "total"' in PROBES[name].source
    assert told is None or NUMBERS[told[1]] == max(made)


def test_progress_is_that_of_the_warp():
    """FLOPS counts per lane, so an mma.m16n8k8 adds 64 times the number of active lanes."""
    text = weave(PLACES, "k", [PROBES["warp_progress"]]).data.decode()
    (count,) = re.findall(r"popc\.b32 (%gpt_b32\S+),", text)
    assert f"cvt.u64.u32 %gpt_0_lanes, {count};" in text
    assert "mad.lo.u64 %gpt_0_done, %gpt_0_lanes, 64, %gpt_0_done;" in text


@pytest.mark.full
@pytest.mark.parametrize("arch", ["sm_90a", *map(full, (arch for arch in ARCHS if arch != "sm_90a"))])
def test_every_probe_in_every_kernel(arch, tmp_path, capsys):
    jobs = {(kernel, ""): data for kernel, data in kernels(arch).items()}
    for kernel, data in kernels(arch).items():
        for name in PROBES:
            if found := woven(data, kernel, PROBES[name]):
                jobs[kernel, name] = found.data
    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(jobs, pool.map(lambda data: assemble(data, arch, tmp_path), jobs.values()), strict=True))
    added = {}
    for (kernel, name), (registers, spills) in reports.items():
        before = reports[kernel, ""]
        if b".func" not in jobs[kernel, ""]:  # live registers are spilled at calls
            assert spills == before[1], f"{name} in {kernel} spills"
        added.setdefault(name, []).append(registers - before[0])
    with capsys.disabled():
        for name, counts in list(added.items())[1:]:
            print(
                f"\n{arch} {name}: {len(counts)} kernels, registers added: median {statistics.median(counts)}", end=""
            )
    assert statistics.median(added["block_sched"]) <= 6  # most of these kernels take no more than ten
    assert statistics.median(added["gmem_bytes"]) <= 4
    assert set(added) >= {"", *PROBES} - {"warp_progress"}


@pytest.mark.parametrize("step", [6, full(1)])
def test_all_probes_at_once(tmp_path, step):
    for kernel, data in itertools.islice(kernels("sm_90").items(), 0, None, step):
        found = weave(data, kernel, list(PROBES.values()))
        assert unweave(found.data) == data
        assert len(found.maps) == len(found.added) >= 2
        assemble(found.data, "sm_90", tmp_path)


TYPES = ("u64", "u32", "f32", "u16", "f64")
HELPERS = {  # helper -> the types in which a snippet may read it
    "ADDR": ("u64",),
    "BYTES": ("u32",),
    "FLOPS": ("u32",),
    **dict.fromkeys(("OUT", "IN1", "IN2", "IN3", "IN4"), TYPES),
}


@pytest.mark.full
@pytest.mark.parametrize("when", [full("before"), "after"])
@pytest.mark.parametrize("arch", ["sm_75", full("sm_90a"), full("sm_100a")])
def test_every_helper_at_every_instruction(arch, when, tmp_path):
    """A probe that doesn't fit an instruction is left out; the woven code assembles."""
    asked = {name: types for name, types in HELPERS.items() if name != "OUT" or when == "after"}
    text = "".join(f'[map.{type_}]\ndata = {{a = "{type_}"}}\n' for type_ in TYPES)
    for name in (f"{helper}_{type_}" for helper, types in asked.items() for type_ in types):
        helper, type_ = name.split("_")
        snippet = f".reg .{type_} %{name}; mov.{type_} %{name}, {helper}; SAVE [{type_}] {{%{name}}};"
        text += f'[probe.{name}]\nposition = "*"\n{when} = "{snippet}"\n'
    file = load.parse_toml(text, "helpers.toml")
    verify.verify(file)
    found = [one for kernel, data in kernels(arch).items() if (one := woven(data, kernel, file))]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: assemble(one.data, arch, tmp_path), found))
    placed = {site.probe for one in found for site in one.sites if site.woven}
    assert placed >= {f"helpers.{helper}_{types[0]}" for helper, types in asked.items()}


def test_a_kernel_stores_its_results_before_the_probe_works_at_its_exit(tmp_path):
    body = "ld.param.b64 %rd0, [p];\nmov.u32 %r0, %tid.x;\nmad.wide.u32 %rd1, %r0, 16, %rd0;\n"
    for number in range(4):
        body += f"setp.lt.u32 %p{number}, %r0, {100 - number};\n"
        body += f"@%p{number} ld.global.f32 %f{number}, [%rd1+{4 * number}];\nex2.approx.f32 %f{number}, %f{number};\n"
    body += "".join(f"@%p{number} st.global.f32 [%rd1+{4 * number}], %f{number};\n" for number in range(4)) + "ret;"
    found = woven(make_kernel(body), "k", PROBES["gmem_bytes"])
    assemble(found.data, "sm_90", tmp_path)
    (cubin,) = tmp_path.glob("*.cubin")
    code = re.findall(r"^\s+/\*\w{4}\*/.*", cuda.disassemble(cubin.read_bytes()), re.MULTILINE)
    stores = [number for number, line in enumerate(code) if "STG.E desc" in line]
    sums = [number for number, line in enumerate(code) if " REDUX" in line]
    assert len(stores) == 4 and max(stores) < min(sums)
