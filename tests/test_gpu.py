"""The parts of tests/gpu that need no GPU: the scripts on the simulated device, and README's tables."""

import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.demo.build import build

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))  # the scripts import each other by name

import containers  # noqa: E402
import debloat  # noqa: E402
import inplace  # noqa: E402
import recompress  # noqa: E402
import table  # noqa: E402
import wheels  # noqa: E402
import workload  # noqa: E402

HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
USE = """
import ctypes, json, os, sys, demo_package
driver = ctypes.CDLL("libcuda.so.1")
library, context = ctypes.CDLL(demo_package.LIBRARY), ctypes.c_void_p()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
print(library.demo_matmul())
print(json.dumps({"seconds": 1.5, "resident": 2000, "gpu": 3}), file=sys.stderr)
"""


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """Return a workload in a package of its own, and the folder where its result will be."""
    if not HOOK.exists() or subprocess.run([HOOK, "check"], capture_output=True).returncode == 4:
        pytest.skip("no gpt-hook: make runtime")
    package = tmp_path / "packages" / "demo_package"
    build(package)
    (package / "__init__.py").write_text("import os\nLIBRARY = os.path.join(os.path.dirname(__file__), 'libdemo.so')\n")
    use = tmp_path / "use.py"
    use.write_text(USE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(debloat, "WORKLOADS", {"demo": [sys.executable, str(use)]})
    monkeypatch.setattr(inplace, "ENVIRONMENT", ("demo_package",))
    monkeypatch.setattr(inplace, "COMMAND", [sys.executable, str(use)])
    monkeypatch.setitem(table.TITLES, "demo", "demo")
    return tmp_path


def measured(folder, *words):
    """Return the status, and the result rows by name."""
    results = folder / "results.json"
    status = debloat.main(["--device", "sim", "--results", str(results), *words])
    return status, {row["name"]: row for row in json.loads(results.read_text())}


@pytest.mark.full
def test_a_workload_is_measured_and_its_row_added(demo, capsys):
    (demo / "results.json").write_text('[{"name": "old", "same": false}]')
    status, rows = measured(demo, "demo")
    row = rows["demo"]
    assert status == 0, row
    assert rows["old"] == {"name": "old", "same": False}
    assert row["same"] and row["check"].startswith("check: same status (0), same output")
    assert list(row["sizes"]) == ["element", "zero", "drop"]
    assert row["sizes"]["element"]["size_after"] < row["sizes"]["element"]["size_before"]
    assert row["sizes"]["element"]["libraries"].keys() == {"libdemo.so"}
    assert row["runs"]["drop eager"] == {"seconds": 1.5, "resident": 2000, "gpu": 3, "each": [1.5]}
    assert row["runs"]["element lazy"]["each"] == [1.5] * 3
    assert "| demo |" in capsys.readouterr().out
    (demo / "results.json").write_text(json.dumps([{**row, "sizes": {"zero": {}}, "runs": {}, "error": "of old"}]))
    status, rows = measured(demo, "demo", "--quick", "--rounds", "2")
    assert status == 0
    assert "error" not in rows["demo"]
    assert rows["demo"]["check"] == row["check"]
    assert rows["demo"]["sizes"].keys() == {"zero", "drop"}
    kinds = ("original", "drop")
    assert rows["demo"]["runs"].keys() == {f"{kind} {how}" for kind in kinds for how in ("lazy", "eager")}
    assert rows["demo"]["runs"]["original lazy"]["each"] == [1.5] * 2
    assert gzip.open(demo / "demo.mp.gz").read()
    (demo / "results.json").write_text('[{"name": "old", "same": false}]')
    status, rows = measured(demo, "demo", "--seconds", "1")
    assert list(rows) == ["old", "demo"]
    assert status == 1 and rows["demo"]["unfinished"].startswith("no time for")


@pytest.mark.full
def test_workload_with_different_output_fails(demo):
    with open(demo / "use.py", "a") as file:
        file.write("print(os.path.getsize(os.path.realpath(next(line.split()[-1] for line in open('/proc/self/maps')"
                   " if 'libdemo.so' in line))))\n")  # fmt: skip
    status, rows = measured(demo, "demo")
    assert status == 1
    assert not rows["demo"]["same"]
    assert "its output differs" in rows["demo"]["error"]


@pytest.mark.full
def test_in_place_and_back(demo, monkeypatch):
    monkeypatch.setattr(inplace, "KILL_AFTER", (0.4, 0.9))
    status, rows = measured(demo, "apply")
    row = rows["apply"]
    assert status == 0, row
    assert list(row["steps"]) == ["loaded", "all", "killed after 0.4 s", "killed after 0.9 s"]
    assert row["steps"]["loaded"]["size_after"] < row["size_before"]
    assert row["steps"]["loaded"]["restored"].startswith("libraries restored: 1,")


@pytest.mark.full
def test_containers_are_measured(demo, monkeypatch, capsys):
    monkeypatch.setattr(containers, "COMMAND", [sys.executable, str(demo / "use.py")])
    results = demo / "containers.json"
    status = containers.main(["--device", "sim", "--results", str(results)])
    row = json.loads(results.read_text())
    assert status == 0, row
    assert (row["operations"], row["unsteady"], row["errors"], row["differences"]) == (1, [], [], {})
    kinds = ("original", *containers.KINDS)
    assert row["runs"].keys() == {f"{kind} {how}" for kind in kinds for how in ("lazy", "eager")}
    assert row["outside"]["elements"] == {} and row["outside"]["images from memory"] == 0
    assert row["sizes"]["drop"]["libraries"]["libdemo.so"]["size_after"] < row["sizes"]["drop"]["size_before"]
    assert capsys.readouterr().out.endswith("ok\n")
    with open(demo / "use.py", "a") as file:
        file.write("print(os.path.getsize(os.path.realpath(next(line.split()[-1] for line in open('/proc/self/maps')"
                   " if 'libdemo.so' in line))))\n")  # fmt: skip
    assert containers.main(["--device", "sim", "--results", str(results)]) == 1
    assert len(json.loads(results.read_text())["differences"]["drop lazy"]) == 1


def test_a_tree_shows_every_difference(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_text("a")
    (tmp_path / "l").symlink_to("d/a")
    before = inplace.tree(tmp_path)
    assert inplace.size(before) == 1
    assert not inplace.differences(before, inplace.tree(tmp_path))
    for change, name in (
        (lambda: (tmp_path / "d" / "a").chmod(0o600), "d/a"),
        (lambda: os.utime(tmp_path / "d" / "a", (1, 1)), "d/a"),
        (lambda: ((tmp_path / "l").unlink(), (tmp_path / "l").symlink_to("d")), "l"),
        (lambda: (tmp_path / "d" / "new").touch(), "d/new"),
    ):
        change()
        assert inplace.differences(before, inplace.tree(tmp_path)) == [name]
        before = inplace.tree(tmp_path)


def test_a_workload_says_what_it_used(tmp_path):
    """The driver's own count is requested as well, in a process with the simulated device."""
    code = "import workload; print(workload.gpu_bytes())"
    env = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "gpu")}
    line = [HOOK, "run", "-q", "-o", tmp_path / "t.mp", "--device", "sim", "--", sys.executable, "-c", code]
    if not HOOK.exists():
        pytest.skip("no gpt-hook: make runtime")
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 0
    facts = workload.facts(2.5, "cpu")
    assert facts["seconds"] == 2.5 and facts["gpu"] == 0
    assert 1 << 20 < facts["mapped"] < facts["resident"]


def test_every_workload_exists():
    for module, function in workload.WORK.values():
        assert f"def {function}(" in (ROOT / "tests" / "gpu" / f"{module}.py").read_text()
    assert workload.WORK.keys() == debloat.WORKLOADS.keys() == table.TITLES.keys()


def test_readme_has_the_tables_of_the_results():
    rows = json.loads(debloat.COMMITTED.read_text())
    readme = (ROOT / "docs/measured.md").read_text().splitlines()
    lines = [*table.sizes(rows), *table.runs(rows)]
    assert len(lines) > 8
    assert [line for line in lines if line not in readme] == []


WHEEL_USE = """
import demo_package

def prepare(device):
    return lambda: open(demo_package.LIBRARY, "rb").read(4) + device.encode()
"""


@pytest.mark.full
def test_versions_of_a_wheel_are_compared(demo, monkeypatch, capsys):
    """All steps except the GPU's are run: versions are built, installed, run interleaved, and compared."""
    members = {f"demo_package/{path.name}": path.read_bytes() for path in (demo / "packages/demo_package").iterdir()}
    info = "demo_package-1.dist-info"
    members[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: demo-package\nVersion: 1\n"
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
    members[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"]).encode()
    wheel = demo / "demo_package-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    uses = demo / "uses"
    uses.mkdir()
    (uses / "demo.py").write_text(WHEEL_USE)
    monkeypatch.setattr(wheels.use_of, "__defaults__", (uses,))
    monkeypatch.setattr(recompress, "OUT", demo / "out")
    monkeypatch.delenv("PYTHONPATH")
    assert recompress.main(["--dry-run", "--rounds", "2", str(wheel)]) == 0
    (found,) = json.loads((demo / "out" / "recompress-wheels.json").read_text())
    files = {way: one["file"] for way, one in found["versions"].items()}
    cut = "demo_package-1+sm90-py3-none-any.whl"
    assert files == {"shipped": wheel.name, "recompressed": wheel.name, "arch": cut, "both": cut}
    assert all(len(one["first"]) == 2 and len(one["digests"]) == 1 for one in found["versions"].values())
    assert f"{wheel.name}: the same bytes, on cpu" in capsys.readouterr().out
    (uses / "demo.py").write_text(WHEEL_USE.replace("device.encode()", "demo_package.__file__.encode()"))
    assert recompress.main(["--dry-run", "--rounds", "1", str(wheel)]) == 1
    with pytest.raises(SystemExit, match=r"no script in .* is for 'other'"):
        recompress.main(["--dry-run", str(wheel.rename(demo / "other-1-py3-none-any.whl"))])
