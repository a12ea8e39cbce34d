"""Weave every built-in probe into the kernels of launches.py: results don't change, and probe counts match the sources.

If a kernel has no branches, its text shows what each thread executes. For other kernels, a launch has totals in
`counts`: bytes `read` and `written`, `loads` and `accesses` of global memory by lanes, `waits` of each warp at
barriers, branches that lanes `reached`, and the `range` of the values that threads compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpt.probe import verify
from gpt.probe.model import ProbeFile
from gpt.probe.ptx.weave import LeftAlone, Woven, weave
from gpt.probe.read import load
from tests.asm.host.jobs import Answer, Job
from tests.gpu.weave import buffer_size, rows
from tests.tally.launches import Launch

PROBES = sorted(path.stem for path in load.BUILTIN.glob("*.toml"))
BUDGET = 1 << 20  # bytes of a log; records that don't fit are counted
SAMPLED = 8  # log one block or warp in this many
ACCESS = re.compile(r"(?<![.\w])(ld|st|atom|red|cp\.async\.c[ag])((?:[.:]+\w+)*)\s")
BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True)
class Case:
    """A woven kernel; `totals` are its launch's known totals."""

    launch: Launch
    kernel: str
    probe: str
    woven: Woven
    totals: dict[str, Any]

    @property
    def sizes(self) -> list[int]:
        """Bytes of the maps' buffers."""
        return [buffer_size(self.woven, number, self.launch) for number in range(len(self.woven.maps))]  # type: ignore[arg-type]


def cases(launch: Launch, kernel: str, ptx: bytes) -> Iterator[Case]:
    """Weave each applicable probe into a kernel, except probes that don't support calls through pointers."""
    if launch.fault or launch.linked or not launch.simulated:
        return
    totals = {**static(ptx.decode(), launch), **launch.counts}
    for probe in PROBES:
        try:
            woven = weave(ptx, kernel, [probe_file(probe)], launch.source)
        except LeftAlone:
            assert launch.source == "recurse" or not totals.get(NEEDED[probe]), f"{kernel}: {probe} finds no place"
            continue
        if not woven.variables:  # tests/gpu/variables.py tests those
            yield Case(launch, kernel, probe, woven, totals)


@cache
def probe_file(name: str) -> ProbeFile:
    """Return a built-in probe with a small log."""
    text = load.find_probe(name).read_text()
    file = load.parse_toml(re.sub(r"^budget = .*", f"budget = {BUDGET}", text, flags=re.M), f"{name}.toml")
    verify.verify(file)
    return file


NEEDED = {  # a probe applies if the kernel does this
    "bank_conflict": "shared", "block_sched": "threads", "branch_divergence": "bra", "dmat": "accesses",
    "gmem_bytes": "accesses", "inst_latency": "loads", "program_progress": "bra", "sync_wait": "waits",
    "tensorop_count": "operations", "value_range": "f32", "warp_progress": "operations", "warp_ranges": "waits",
    "warp_sched": "threads",
}  # fmt: skip


def static(text: str, launch: Launch) -> dict[str, Any]:
    """Return a branch-free kernel's counts, derived from its text; for other kernels, only the counts that are zero."""
    text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", text)
    body = text[text.index("{", text.index(".entry")) :]
    threads, warps = launch.blocks * launch.threads, launch.blocks * launch.warps
    found: dict[str, Any] = {"threads": threads}
    found |= {"f32": len(re.findall(r"(?<![.\w])(?:add|sub|mul|fma)\.[\w.]*f32\b", body))}
    found |= {"mbarriers": len(re.findall(r"\bmbarrier\.(?:try|test)_wait", body))}
    if not re.search(r"\bbra\b", body):
        found |= {"bra": 0}
    tensor = len(re.findall(r"\bwmma\.mma", body))
    shared = len(re.findall(r"\b(?:ld|st|atom|red|ldmatrix|stmatrix)[\w.]*\.shared", body))
    for what, count in (("operations", tensor), ("shared", shared)):
        if not count:
            found[what] = 0
    if re.search(r"@|\bbra\b|\bcall\b", body):
        return found
    sums = dict.fromkeys(("read", "written", "loads", "accesses", "async"), 0)
    for op, words in ACCESS.findall(body):
        if "param" in words or "shared" in words or "local" in words or "const" in words:
            continue
        if "global" not in words and op[:2] != "cp":
            return found  # a generic address
        width = re.findall(r"\.[busf](8|16|32|64)\b|\.(?:f16x2)()", words)
        vector = int(size[1]) if (size := re.search(r"\.v([248])\b", words)) else 1
        size_ = (BYTES[width[-1][0]] if width and width[-1][0] else 4 if ".f16x2" in words else 2) * vector
        sums["accesses"] += 1
        sums["loads"] += op == "ld"
        sums["read"] += size_ * (op in ("ld", "atom"))
        sums["written"] += size_ * (op in ("st", "atom", "red"))
    for one in re.findall(r"\bwmma\.(?:load|store)\.\w[\w.]*", body):
        sums["read" if "load" in one else "written"] += 32 if "f32" in one or "s32" in one else 16
        if "s8" in one:
            sums["read"] -= 8
    found |= {name: count * threads for name, count in sums.items()}
    found |= {"waits": len(re.findall(r"\b(?:bar|barrier)(?:\.cta)?\.(?:sync|red)", body))}
    found |= {"operations": tensor * warps, "shared": shared * threads}
    return found


def jobs(launch: Launch, woven: list[Case], plain: bytes, images: Iterable[bytes]) -> list[Job]:
    """Return the jobs for the original kernel and for the kernel with each probe."""
    kernel = woven[0].kernel
    return [
        launch.job(plain, kernel),
        *(launch.job(image, kernel, case.sizes) for case, image in zip(woven, images, strict=True)),
    ]


def lanes(launch: Launch) -> Any:
    """Return the number of threads in each warp."""
    each = [min(32, launch.threads - 32 * warp) for warp in range(launch.warps)]
    return np.array(each * launch.blocks)


def check(case: Case, plain: Answer, answer: Answer) -> str:
    """Return how a result or a count differs; empty if all are equal."""
    try:
        _check(case, plain, answer)
    except AssertionError as error:
        return f"{case.kernel}, {case.probe}: {error}"
    return ""


def _check(case: Case, plain: Answer, answer: Answer) -> None:
    launch, count = case.launch, len(case.launch.buffers())
    assert isinstance(plain, list) and isinstance(answer, list), f"{answer}"
    differs = launch.differs(launch.found(answer), launch.found(plain))
    assert not differs, f"the result differs: {differs}"
    for number in range(len(case.woven.maps)):
        CHECKS[case.probe](case, *rows(case.woven, number, answer[count + number], launch))


def equal(case: Case, what: str, found: Any) -> None:
    """Check that a total has its known value, if there's one."""
    if what in case.totals:
        assert int(found) == case.totals[what], f"{what}: {int(found)}, not {case.totals[what]}"


def one_a_warp(case: Case, counts: Any) -> None:
    assert (counts >= 1).all() and (counts <= lanes(case.launch)).all(), f"groups of lanes that left: {counts}"


def all_lanes(case: Case, counts: Any) -> None:
    assert (counts == lanes(case.launch)).all(), f"threads counted: {counts}"


def check_gmem_bytes(case: Case, counts: Any, slots: Any) -> None:
    assert len(counts) == case.launch.blocks
    for name in ("read", "written", "async"):
        equal(case, name, slots[name].sum() if name in slots.dtype.names else 0)


def check_inst_latency(case: Case, counts: Any, slots: Any) -> None:
    all_lanes(case, counts)
    equal(case, "loads", slots["loads"].sum())
    assert ((slots["clocks"] > 0) == (slots["loads"] > 0)).all()


def check_sync_wait(case: Case, counts: Any, slots: Any) -> None:
    one_a_warp(case, counts)
    if "waits" in case.totals:
        assert (slots["waits"] == case.totals["waits"]).all(), f"waits: {slots['waits'].ravel()}"


def check_tensorop_count(case: Case, counts: Any, slots: Any) -> None:
    all_lanes(case, counts)
    equal(case, "operations", slots["operations"].sum())
    equal(case, "operations", slots["flops"].sum() / (2 * 16**3))


def check_branch_divergence(case: Case, counts: Any, slots: Any) -> None:
    all_lanes(case, counts)
    assert (slots["split"] <= slots["taken"]).all() and (slots["taken"] <= slots["reached"]).all()
    for name in ("reached", "taken", "split"):
        equal(case, name if name in case.totals else "bra", slots[name].sum())


def check_block_sched(case: Case, counts: Any, slots: Any) -> None:
    assert (counts == 1).all() and len(counts) == case.launch.blocks
    assert (slots["start"] < slots["stop"]).all() and (slots["end"] > 0).all()


def check_warp_sched(case: Case, counts: Any, slots: Any) -> None:
    one_a_warp(case, counts)
    assert (slots["block"].ravel() == np.repeat(np.arange(case.launch.blocks), case.launch.warps)).all()
    assert (slots["start"] <= slots["end"]).all()


def check_value_range(case: Case, counts: Any, slots: Any) -> None:
    assert (counts == 1).all()
    least, greatest = slots["least"].ravel(), slots["greatest"].ravel()
    if not case.totals["f32"]:
        assert np.isposinf(least).all() and np.isneginf(greatest).all() and not slots["nans"].any()
    if span := case.totals.get("range"):
        wanted = span(case.launch.wanted())
        assert (least[: len(wanted[0])] == wanted[0]).all() and (greatest[: len(wanted[1])] == wanted[1]).all()
        assert np.isposinf(least[len(wanted[0]) :]).all()


def check_dmat(case: Case, counts: Any, entries: Any) -> None:
    equal(case, "accesses", counts[0])
    kept = entries[: min(int(counts[0]), len(entries))]
    assert kept["address"].all()
    if len(kept) == counts[0] and {"read", "written", "loads"} <= case.totals.keys() and not case.totals.get("atomics"):
        equal(case, "moved", kept["bytes"].sum())


def check_bank_conflict(case: Case, counts: Any, entries: Any) -> None:
    blocks = -(-case.launch.blocks // SAMPLED)
    if "shared" in case.totals:
        assert counts[0] * case.launch.blocks == case.totals["shared"] * blocks, f"{counts[0]} accesses"
    assert (entries["unit"] // case.launch.threads % SAMPLED == 0).all()


def check_program_progress(case: Case, counts: Any, entries: Any) -> None:
    equal(case, "bra", counts[0])
    assert (entries["unit"] // case.launch.warps % SAMPLED == 0).all()
    assert entries["steps"][: min(int(counts[0]), len(entries))].all()


def check_warp_progress(case: Case, counts: Any, entries: Any) -> None:
    warps = case.launch.blocks * case.launch.warps
    if "operations" in case.totals:
        assert counts[0] * warps == case.totals["operations"] * -(-warps // SAMPLED), f"{counts[0]} operations"


def check_warp_ranges(case: Case, counts: Any, entries: Any) -> None:
    blocks = -(-case.launch.blocks // SAMPLED)
    # Waits for copies and mbarriers are ranges, too.
    if "waits" in case.totals and not case.totals.get("async") and not case.totals["mbarriers"]:
        assert counts[0] == 2 * case.totals["waits"] * blocks * case.launch.warps, f"{counts[0]} begins and ends"
    assert (entries["unit"] // case.launch.warps % SAMPLED == 0).all()


CHECKS = {name: globals()[f"check_{name}"] for name in PROBES}
