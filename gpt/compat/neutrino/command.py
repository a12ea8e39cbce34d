"""Convert a run of gpt-neutrino to a command line of gpt-hook, and an environment."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.base import signals
from gpt.base.errors import GptError, MissingError, UsageError
from gpt.base.outputs import make_folder
from gpt.compat.neutrino.writer import VARIABLE
from gpt.probe.model import ProbeFile
from gpt.probe.read.load import BUILTIN, find_probe, load_probes
from gpt.probe.verify import verify

PACKAGE = Path(__file__).parent / "python"  # added to PYTHONPATH
TOOLS = PACKAGE / "neutrino" / "tools"
WAIT = 300  # seconds that a program waits for its kernels


@dataclass(frozen=True)
class NeutrinoOptions:
    """The options of a run."""

    probe: str
    parent: str
    kernels: str = ""
    filter: str = ""
    callback: str | None = None
    driver: Path | None = None
    python: str | None = None
    device: str = "real"
    benchmark: bool = False
    memusage: bool = False


def find_parent(tracedir: str | None, trace: str | None) -> str:
    """Return the folder for trace folders: `trace` in `--tracedir`, or else the folder that --trace or
    NEUTRINO_TRACEDIR names.
    """
    if tracedir is not None:
        same = os.path.basename(os.path.normpath(tracedir)) == "trace"
        return tracedir if same else os.path.join(tracedir, "trace")
    return trace or os.environ.get("NEUTRINO_TRACEDIR") or "./trace"


def find_tool(name: str) -> Path:
    """Return the file for `-p`: a tool, a built-in probe, or a path. Raises MissingError."""
    if (tool := TOOLS / f"{name}.toml").is_file() and Path(name).name == name:
        return tool
    try:
        return find_probe(name)
    except MissingError:
        known = ", ".join(sorted({path.stem for folder in (TOOLS, BUILTIN) for path in folder.glob("*.toml")}))
        raise MissingError(f"no such probe file, and not a tool ({known})", name) from None


def find_hook(name: str, probe: Path) -> Path | None:
    """Return the path of a program to run on results. Return None if it names an analysis.

    The program is next to the probe file or among the tools. Raises MissingError if it's in neither place.
    """
    if "/" not in name and not Path(name).suffix:
        return None
    for folder in (probe.parent, TOOLS):
        path = (folder / name).resolve()
        if path.is_file():
            return path
    raise MissingError("no such analyze hook next to the probe file or among the tools", name)


def start(asked: NeutrinoOptions, command: list[str]) -> int:
    """Replace this process by gpt-hook. Raises GptError if something is missing that the options name."""
    if asked.benchmark and asked.memusage:
        raise UsageError("--memusage cannot be combined with --benchmark")
    path = find_tool(asked.probe).resolve()
    loaded = load_probes(path)
    verify(loaded)
    if found := next((map_ for map_ in loaded.maps if map_.type in ("histogram", "table")), None):
        raise GptError(
            f"map '{found.name}': Neutrino's results have no {found.type}s; 'gpt-hook run -p' records them", str(path)
        )
    hook = _choose_hook(asked, loaded, path)
    python = shutil.which(asked.python) if asked.python else sys.executable
    if not python:
        raise MissingError("no such Python", str(asked.python))
    if asked.driver:
        _use_driver(asked.driver)
    make_folder(Path(asked.parent))
    kept = Path(tempfile.gettempdir(), f"gpt-neutrino.{secrets.token_hex(16)}")  # created when it's first needed
    todo = {
        "parent": asked.parent,
        "kept": str(kept),
        "kernels": asked.kernels,
        "filter": asked.filter,
        "hook": hook[0],
        "hook_path": hook[1],
        "python": python,
        "sizes": {found.name: found.size for found in loaded.maps},
        "probe": str(path),
        "benchmark": asked.benchmark,
        "second": loaded.second,
    }
    os.environ |= {
        VARIABLE: json.dumps(todo),
        "GPT_KEEP": str(kept),
        "NEUTRINO_TRACEDIR": asked.parent,
        "NEUTRINO_PROBE": str(path),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")])),
    }
    words = [*_hook_words(asked, path, kept), "--", *command]
    signals.release()  # its timer would survive exec
    try:
        os.execv(words[0], words)
    except OSError as error:
        raise MissingError(error.strerror or str(error), words[0]) from None


def _choose_hook(asked: NeutrinoOptions, loaded: ProbeFile, probe: Path) -> tuple[str, str]:
    """Return the name of the hook, and the path of its program, or "" if there's none to run."""
    named = asked.callback or (os.path.basename(loaded.script) if loaded.script else loaded.callback or "")
    if not named or asked.benchmark or asked.memusage:  # then nothing is saved
        return named, ""
    if loaded.script and not asked.callback:
        return named, loaded.script
    given = Path(named).resolve()
    return named, str(given if asked.callback and given.is_file() else find_hook(named, probe) or "")


def _use_driver(driver: Path) -> None:
    """Put the folder of a driver before all others."""
    if not driver.is_file():
        raise MissingError("no such driver", str(driver))
    if driver.name != "libcuda.so.1":
        raise GptError("not named libcuda.so.1, as programs ask for it", str(driver))
    folders = [str(driver.resolve().parent), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))


def _hook_words(asked: NeutrinoOptions, probe: Path, kept: Path) -> list[str]:
    folder = _find_executables()
    # A different Python may not find this package in the way we did (packaging/start.py).
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
    module = ["env", f"PYTHONPATH={path}", sys.executable, "-P", "-m"]
    stages = [
        [f"{folder}/gpt-extract", "--ptx"],
        [f"{folder}/gpt-ptx-probe", "-p", str(probe), *(["--count"] if asked.memusage else [])],
        [f"{folder}/gpt-asm", "--original"],
        [*module, "gpt.compat.neutrino.keeper", str(kept)],
    ]
    texts = [shlex.join(stage) for stage in stages]
    texts[2] += ' --arch "$GPT_ARCH"'
    words: list[Any] = [
        f"{folder}/gpt-hook",
        "run",
        "-q",
        "-o",
        "|exec " + shlex.join([*module, "gpt.compat.neutrino.writer"]),
    ]
    words += ["--device", asked.device, "--jit", " | ".join(texts), "--gpu-time", "--wait", WAIT, "--complete"]
    for option, value in (("-k", asked.kernels), ("--filter", asked.filter)):
        words += [option, value] if value else []
    words += ["--benchmark"] if asked.benchmark else []
    words += ["--memusage"] if asked.memusage else []
    return [str(word) for word in words]


def _find_executables() -> Path:
    """Return the folder with gpt-hook and the stages: the folder of this executable, of Python, or else the first in
    PATH that has them.
    """
    found = shutil.which("gpt-hook")
    places = [Path(sys.argv[0]).resolve().parent, Path(sys.executable).parent, *([Path(found).parent] if found else [])]
    for folder in places:
        if (folder / "gpt-hook").exists() and (folder / "gpt-asm").exists():
            return folder
    raise MissingError("gpt-hook is not installed")
