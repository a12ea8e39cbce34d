"""setuptools commands that also build the C runtime, and package it with the built-in probes.

pyproject.toml names these commands and has everything else about the package. The wheel is for one platform and for any
Python 3. `gpt-hook` is installed as a binary, because starting Python would take longer than the rest of its work.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel  # must be imported before distutils, which it provides
from setuptools.command.build_py import build_py
from setuptools.command.dist_info import dist_info
from setuptools.command.sdist import sdist

from distutils.command.build_scripts import build_scripts  # isort: skip
from distutils.command.install_data import install_data  # isort: skip

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
PACKAGED = Path("gpt", "_runtime")
SNIPPETS = "snippets"
PROBES = Path("gpt", "_probes")
# On other platforms the package has no gpt-hook, but still reads, cuts and shows GPU code.
HAS_RUNTIME = sys.platform == "linux" and platform.machine() == "x86_64"
START = "gpt_start.py"  # installed name of start.py
SOURCES = ("bin", "gpt", "man", "probes", "runtime", "Makefile", "CHANGELOG.md")  # in a source distribution
SCRIPTS = ("gpt-debloat", "gpt-negativa", "gpt-trace")  # use the stages next to them
EDITABLE = """\
#!/bin/bash
[ -x {launcher} ] || {{ echo "gpt-hook: error: not built: run 'make runtime' in "{top} >&2; exit 4; }}
exec -a "$(readlink -f "$0")" {launcher} "$@" # the stages are in the same folder
"""


def find_compiler() -> list[str]:
    """Return the command of the C compiler as words. Exits with a message if it or make is missing."""
    compiler = shlex.split(os.environ.get("CC", "cc")) or ["cc"]
    for tool, package in (("make", "make"), (compiler[0], "gcc libc6-dev")):
        if not shutil.which(tool):
            sys.exit(f"setup: error: no '{tool}', which builds gpt-hook (Debian: apt-get install {package})")
    return compiler


def make_runtime(folder: Path) -> None:
    """Build the runtime into a folder. Exits with a message if a tool is missing."""
    compiler = find_compiler()
    # CC is a single word, but make would split a path at a blank.
    if any(character.isspace() for character in str(folder)):
        sys.exit(f"setup: error: {folder}: make takes no path with a blank: build elsewhere")
    command = ["make", "--no-print-directory", "runtime", f"RUNTIME={folder}", f"PYTHON={shlex.quote(sys.executable)}"]
    command.append(f"CC={shlex.join(compiler)}")
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL")}
    # A compiler with more warnings than ours must not prevent an installation.
    environment["CFLAGS"] = f"{environment.get('CFLAGS', '-O2')} -Wno-error"
    if subprocess.run(command, cwd=TOP, env=environment, check=False).returncode:
        sys.exit("setup: error: the runtime does not build: see above")


def make_snippets(folder: Path) -> None:
    """Compile the built-in probes into a folder. That takes our dependencies and ptxas, which `make setup` installs in
    the checkout; without them the package works, but gpt-sass-probe needs a ptxas where it runs.
    """
    target, built = folder / SNIPPETS, TOP / PACKAGED / SNIPPETS
    if built.exists():
        shutil.copy(built, target)  # what it has isn't compiled again
    python = TOP / ".venv" / "bin" / "python"
    command = [python if python.exists() else sys.executable, "-m", "gpt.packaging.snippets", target]
    environment = dict(os.environ)
    if python.exists():
        environment.pop("PYTHONPATH", None)  # pip's, which hides the packages of .venv
    done = subprocess.run(command, cwd=TOP, env=environment, stderr=subprocess.PIPE, check=False)
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        target.unlink(missing_ok=True)
        reason = (said.splitlines() or [""])[-1]
        said = f"setup: warning: built-in probes aren't compiled: 'make setup' first ({reason})\n"
    sys.stderr.write(said)


class BuildPackage(build_py):
    """Adds the runtime and the probes to the package; an editable install uses them from the source tree."""

    def run(self) -> None:
        """Copy the package and build the runtime."""
        super().run()
        if not self.editable_mode:
            shutil.copy(HERE / "start.py", Path(self.build_lib) / START)
            shutil.copytree(TOP / "probes", Path(self.build_lib) / PROBES, dirs_exist_ok=True)
        if HAS_RUNTIME:
            folder = (TOP if self.editable_mode else Path(self.build_lib).absolute()) / PACKAGED
            make_runtime(folder)
            if not self.editable_mode:  # where make does it
                make_snippets(folder)


class BuildScripts(build_scripts):
    """Adds the scripts and the launcher to the executables.

    In an editable install, they're small scripts that run the ones in the source tree.
    """

    editable_mode = False

    def get_source_files(self) -> list[str]:
        """Return no files, since a source distribution needs none of them."""
        return []

    def run(self) -> None:
        """Create the executables."""
        folder = Path(self.build_dir)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "start.py", folder / START)
        for name in SCRIPTS:
            shutil.copy(TOP / "bin" / name, folder)
            if self.editable_mode:  # sourced by a shell with the name of the executable, whose folder has the stages
                (folder / name).write_text(f"#!/bin/bash\n. {shlex.quote(str(TOP / 'bin' / name))}\n")
        if not HAS_RUNTIME:
            return
        target = folder / "gpt-hook"
        if self.editable_mode:
            launcher = shlex.quote(str(TOP / PACKAGED / "gpt-hook"))
            target.write_text(EDITABLE.format(launcher=launcher, top=shlex.quote(str(TOP))))
        else:
            self.run_command("build_py")
            shutil.copy(Path(self.get_finalized_command("build_py").build_lib) / PACKAGED / "gpt-hook", target)
        target.chmod(0o755)


class InstallData(install_data):
    """Adds shell completions, which are made from the man pages."""

    def run(self) -> None:
        """Copy the man pages and write the completions."""
        super().run()
        sys.path.insert(0, str(TOP / "man"))
        from mkcompletion import write_all

        self.outfiles += map(str, write_all(Path(self.install_dir, "share")))


def find_glibc(folder: Path) -> tuple[int, int] | None:
    """Return the newest version of glibc that the files in a folder need; None if it's unknown."""
    newest = (0, 0)
    for path in folder.rglob("*"):
        if not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        command = ["readelf", "--version-info", "--wide", path]
        try:
            shown = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
        needs = shown.partition(b"Version needs section")[2]
        newest = max([newest, *((int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", needs))])
    return newest if newest > (0, 0) else None


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python 3, since nothing in it links to Python.

    Its tag is manylinux_2_28 if the binaries need no newer glibc (runtime/portable.h).
    """

    def finalize_options(self) -> None:
        """Declare that the wheel has platform-specific code."""
        self.distribution.has_ext_modules = lambda: HAS_RUNTIME
        super().finalize_options()
        self.root_is_pure = not HAS_RUNTIME

    def get_tag(self) -> tuple[str, str, str]:
        """Return py3-none-PLATFORM."""
        platform = super().get_tag()[2]
        built = Path(self.bdist_dir or "", PACKAGED)
        if HAS_RUNTIME and (glibc := find_glibc(built)) and glibc <= (2, 28):
            platform = "manylinux_2_28_x86_64"
        return ("py3", "none", platform)


class DistInfo(dist_info):
    """Checks for the compiler first: pip runs this before it downloads dependencies."""

    def run(self) -> None:
        """Check, and write the metadata."""
        if HAS_RUNTIME:
            find_compiler()
        super().run()


class SourceDistribution(sdist):
    """Adds the sources of the runtime, the probes, the scripts and the man pages."""

    def make_distribution(self) -> None:
        """Add the sources, and pack them."""
        for name in SOURCES:
            if (TOP / name).is_dir():
                self.filelist.graft(name)
            else:
                self.filelist.append(name)
        self.filelist.prune("gpt/_runtime")
        for pattern in ("runtime/abi/records.h", "runtime/sim/renamed.h"):
            self.filelist.exclude(pattern)
        self.filelist.global_exclude("*.py[cod]")
        self.filelist.remove_duplicates()
        super().make_distribution()
