"""Test gpt-debloat --apply and --restore on an environment of real libraries. tests/gpu/debloat.py calls this as
`apply`.

PYTHONPATH begins with a copy of the packages with CUDA's libraries (ENVIRONMENT), so the installed ones are never
touched. The copy is slimmed in place and restored three times: the libraries that one workload loads, with --check;
then all libraries (-r), with that workload's trace; then all libraries again, but killed half-way. Each time the
workload must print the same as before, and --restore must restore every file: contents, mode, owner, time, links.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from debloat import Bench

ENVIRONMENT = ("torch", "nvidia")
COMMAND = [sys.executable, str(Path(__file__).with_name("workload.py")), "train"]
KILL_AFTER = (2, 6, 12)  # seconds

Tree = dict[str, tuple[Any, ...]]


def describe(path: Path) -> tuple[Any, ...]:
    """Return every property of a file, folder or link that must stay the same."""
    status = path.lstat()
    facts = stat.filemode(status.st_mode), status.st_uid, status.st_gid
    if path.is_symlink():
        return *facts, os.readlink(path)
    if path.is_dir():
        return facts
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return *facts, status.st_nlink, status.st_mtime_ns, status.st_size, digest


def tree(folder: Path) -> Tree:
    """Return everything below a folder."""
    paths = sorted(folder.rglob("*"))
    with ThreadPoolExecutor() as pool:
        return {
            str(path.relative_to(folder)): facts for path, facts in zip(paths, pool.map(describe, paths), strict=True)
        }


def differences(before: Tree, after: Tree) -> list[str]:
    """Return the paths that have changed."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def size(found: Tree) -> int:
    """Return the total size of the files, without backups."""
    return sum(facts[5] for name, facts in found.items() if len(facts) > 5 and not name.endswith(".gpt-orig"))


def copy(bench: Bench, site: Path) -> None:
    """Copy the packages to a folder of their own."""
    site.mkdir()
    for name in ENVIRONMENT:
        spec = importlib.util.find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            bench.run(["cp", "-a", "--reflink=auto", place, str(site)], what=f"copying {name}")
    bench.env |= {"PYTHONPATH": f"{site}:{bench.env['PYTHONPATH']}", "PYTHONDONTWRITEBYTECODE": "1"}


def check(bench: Bench, row: dict[str, Any]) -> Iterator[None]:
    """Run all steps, and add each result to a row."""
    site = bench.folder / "site"
    copy(bench, site)
    original = tree(site)
    row |= {"files": len(original), "size_before": size(original), "steps": {}, "same": True}
    bench.say(f"apply: {row['size_before'] / 1e6:,.0f} MB copied, {row['files']} names")
    trace = bench.folder / "apply.mp"
    out, _ = bench.run([*bench.hook(trace.name), *COMMAND], what="the recorded run")
    yield

    plain = bench.hook("plain.mp") if bench.device == "sim" else []  # only the hook can put the simulated driver first

    def finish(name: str, start: float, *restore: str) -> None:
        """Check the environment, run the workload in it, restore it, and check it again."""
        seconds = time.monotonic() - start
        slim = tree(site)
        lists = (bench.folder / "state" / "gpt" / "applied").glob("*")
        replaced = {os.fsdecode(path) for one in lists for path in one.read_bytes().split(b"\0") if path}
        elsewhere = {path for path in replaced if not path.startswith(f"{site.resolve()}/")}  # files outside the copy
        found = bench.run([*plain, *COMMAND], what=f"the workload after {name}")[0]
        undo = ["sh", "-c", 'gpt-debloat --restore "$@" || test $? -eq 4', "sh", *restore]  # 4: nothing was applied
        said = bench.run(undo, what=f"restoring {name}")[0]
        wrong = [*differences(original, tree(site)), *sorted(elsewhere)]
        same = found == out and not wrong
        row["same"] &= same
        row["steps"][name] = {
            "seconds": seconds, "size_after": size(slim), "changed": len(differences(original, slim)),
            "restored": said.strip(), "output": found == out, "wrong": wrong[:20],
        }  # fmt: skip
        bench.say(f"apply: {name}: {'ok' if same else 'FAILED'} {row['steps'][name]}")

    apply = ["gpt-debloat", "--apply", "--granularity", "kernel"]
    start = time.monotonic()
    bench.run([*apply, "--device", bench.device, "--check", "--", *COMMAND], what="--apply --check")
    finish("loaded", start)
    yield
    start = time.monotonic()
    bench.run([*apply, "-r", str(site), "--traces", str(trace)], what="--apply -r")
    finish("all", start, "-r", str(site))
    yield
    for seconds in KILL_AFTER:
        start = time.monotonic()
        line = [*apply, "-r", str(site), "--traces", str(trace)]
        process = subprocess.Popen(line, env=bench.env, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        finish(f"killed after {seconds} s", start)
        yield
