"""Run the launches of tests/tally/launches.py under `gpt-hook run -p`, and check results and probe counts.

    probe_corpus.py [FOLDER] take the sources' PTX from FOLDER, or compile it with nvcc, which needs g++

One program makes all launches. It runs plain, with each built-in probe, and with several at once. Its results must
equal the plain run's bit for bit. The probes' counts, and the addresses that `dmat` logs, must be right for the
sources.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from gpt.probe.read import load  # noqa: E402
from gpt.trace.buffers import Buffer, ProbedLaunch, SavedBuffer  # noqa: E402
from tests.asm.host.jobs import Answer, answers  # noqa: E402
from tests.gpu import accounts, corpus  # noqa: E402
from tests.gpu.weave import table  # noqa: E402
from tests.tally import woven  # noqa: E402
from tests.tally.launches import Launch  # noqa: E402
from tests.tally.touched import TOUCHED, times  # noqa: E402

SEVERAL = ("block_sched", "gmem_bytes", "dmat")
Named = tuple[Launch, str, bytes]  # with its kernel and PTX
Maps = dict[str, tuple[Any, Any]]  # by map: counts and slots
Key = tuple[Path, int]  # the trace, and the number of the launch


def probe_sets() -> list[tuple[str, ...]]:
    """Return the sets of probes to run: each built-in probe alone, several together, and all."""
    return [*((name,) for name in woven.PROBES), SEVERAL, tuple(woven.PROBES)]


def options(probes: Sequence[str], folder: Path) -> list[str | Path]:
    """Return a -p option for each probe, with small logs."""
    found: list[str | Path] = []
    for name in probes:
        file = folder / f"{name}.toml"
        text = re.sub(r"^budget = .*", f"budget = {woven.BUDGET}", load.find_probe(name).read_text(), flags=re.M)
        file.write_text(text)
        found += ["-p", file]
    return found


@dataclass
class Recorded:
    """A run's probed launches, each with its maps and parameters, by process and launch number."""

    maps: dict[Key, Maps] = field(default_factory=dict)
    launches: dict[Key, tuple[ProbedLaunch, str]] = field(default_factory=dict)
    params: dict[Key, list[bytes]] = field(default_factory=dict)
    process: Path = Path()

    def visit(self, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add a buffer."""
        key = self.process, buffer.launch.id
        self.launches[key] = (buffer.launch, buffer.kernel)
        self.maps.setdefault(key, {})[buffer.map.name] = table(saved)

    def begin(self, path: Path) -> None:
        """Read the parameters of all launches of a trace, before reading their buffers."""
        self.process = path
        for records in accounts.segments(path):
            layouts = {r["id"]: r["params"] for r in records if r["kind"] == "kernel" and "params" in r}
            for record in records:
                if record["kind"] == "probed":
                    data, layout = record.get("params", b""), layouts[record["kernel"]]
                    self.params[path, record["id"]] = [data[p["offset"] : p["offset"] + p["size"]] for p in layout]

    def match(self, launches: Iterable[Named]) -> list[Key | None]:
        """Return a key for each probed launch. If launches have the same kernel and shape, all of them or none must
        have been probed.
        """
        left = sorted(self.launches.items(), key=lambda one: one[1][0].start)
        found: list[Key | None] = []
        for launch, name, _ in launches:
            shape = launch.real_grid, launch.shape[1]
            same = ((name, *shape) == (kernel, one.grid, one.block) for _, (one, kernel) in left)
            at = next((i for i, found_ in enumerate(same) if found_), None)
            found.append(None if at is None else left.pop(at)[0])
        return found


def check_addresses(launch: Launch, params: list[bytes], entries: Any) -> bool:
    """Check the addresses that dmat logged in a launch; return whether closed forms are known for it. Raises
    AssertionError.
    """
    touched = TOUCHED.get((launch.source, launch.kernel))
    if not touched:
        return False
    wanted = touched()
    values = launch.given()
    seen = 0
    for number, rows in wanted.items():
        base, size = int.from_bytes(params[number], "little"), values[number].nbytes
        inside = entries[(entries["address"] >= base) & (entries["address"] < base + size)]
        found = np.stack([inside["address"].astype(np.int64) - base, inside["bytes"].astype(np.int64)], 1)
        if rows is not None:
            assert np.array_equal(times(found, size), times(rows, size)), f"addresses of parameter {number}"
        seen += len(inside)
    assert seen == len(entries), f"{len(entries) - seen} addresses that are in no buffer"
    return True


def check_launch(launch: Launch, name: str, ptx: bytes, probes: Sequence[str], maps: Maps, params: list[bytes]) -> int:
    """Compare counts with closed forms; return how many were compared. Raises AssertionError."""
    totals = {**woven.static(ptx.decode(), launch), **launch.counts}
    checked = 0
    for probe in probes:
        if probe not in maps:
            assert not totals.get(woven.NEEDED[probe]), f"{probe} finds no place"
            continue
        case = woven.Case(launch, name, probe, None, totals)  # type: ignore[arg-type] # the woven code isn't used here
        woven.CHECKS[probe](case, *maps[probe])
        checked += woven.NEEDED[probe] in totals
        if probe == "dmat":
            checked += check_addresses(launch, params, maps[probe][1])
    return checked


def run_set(
    named: list[Named], plain: list[Answer], probes: Sequence[str], device: str, folder: Path, env: dict[str, str]
) -> dict[str, Any]:
    """Return a row with the counts of launches with these probes."""
    start, into = time.monotonic(), folder / f"{probes[0]}-{len(probes)}"
    into.mkdir()
    before = accounts.hooked(into / "%p.mp", device, *options(probes, into))
    found = answers([launch.job(ptx, name) for launch, name, ptx in named], None, 400, before, env)
    wrong, checked, recorded = [], 0, Recorded()
    for (launch, name, _), one, other in zip(named, plain, found, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            said = (
                "" if isinstance(one, str) and isinstance(other, str) else f"{one!r:.200}, with probes {other!r:.200}"
            )
        else:
            said = launch.differs(launch.found(other), launch.found(one)) or launch.judge(other)
        wrong += [f"{name}: {said}"] if said else []
    account = accounts.Account()
    for path in sorted(into.glob("*.mp")):
        recorded.begin(path)
        account.add(accounts.account(path, recorded.visit, killed=any(launch.fault for launch, *_ in named)))
    matched = recorded.match(named)
    if sum(key is not None for key in matched) != len(recorded.launches):
        wrong.append("the trace has a launch that the program didn't make")
    for (launch, name, ptx), key in zip(named, matched, strict=True):
        if key is None or launch.fault:
            continue
        try:
            checked += check_launch(launch, name, ptx, probes, recorded.maps[key], recorded.params[key])
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    wrong += account.wrong
    row = {"probes": ",".join(probes) if len(probes) < 4 else f"all {len(probes)}", "seconds": time.monotonic() - start}
    return row | account.row() | {"checked": checked, "wrong": wrong}


def run_all(
    named: list[Named], device: str, folder: Path, sets: Iterable[Sequence[str]], patience: float = 3600
) -> Iterable[dict[str, Any]]:
    """Yield a row for each set of probes that can start within `patience` seconds."""
    end = time.monotonic() + patience
    env = accounts.environment(folder, device)
    library = accounts.SIMULATED if device == "sim" else None
    plain = answers([launch.job(ptx, name) for launch, name, ptx in named], library, 300, env=env)
    for probes in sets:
        if time.monotonic() < end:
            yield run_set(named, plain, probes, device, folder, env)
        else:
            yield {"probes": ",".join(probes), "wrong": ["not run: no time was left"]}


def main() -> int:
    """Run, compare, and print a table; return 1 if anything is wrong."""
    parser = accounts.arguments(__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    folder = given.folder
    if not folder:
        corpus.compile_all(folder := accounts.OUT / "corpus.ptx")
    named = [one for one in corpus.kernels(folder) if (one[0].simulated or given.device == "real") and not one[0].fault]
    sets = [("gmem_bytes",), SEVERAL] if given.quick else probe_sets()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for row in run_all(named, given.device, Path(name), sets, given.patience):
            rows.append(row)
            for said in row["wrong"]:
                print(f"{row['probes']}: {said}", flush=True)
            accounts.keep("probe_corpus", rows)
    print(f"{'probes':30}{'seconds':>9}{'launches':>10}{'probed':>8}{'checked':>9}  without probes, and why")
    for row in rows:
        if "probed" in row:
            counts = f"{row['seconds']:9.1f}{row['launched']:10}{row['probed']:8}{row['checked']:9}"
            reasons = "; ".join(f"{count}: {reason}" for reason, count in row["unprobed"].items())
            print(f"{row['probes'][:29]:30}{counts}  {reasons or '-'}{'  WRONG' if row['wrong'] else ''}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
