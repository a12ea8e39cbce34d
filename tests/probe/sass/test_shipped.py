"""The built-in probes that the package has in compiled form: all of them are there and up to date, so ptxas isn't
needed.
"""

import random

import pytest

from gpt.asm import find
from gpt.base.cache import Cache
from gpt.base.errors import MissingError
from gpt.packaging import snippets
from gpt.probe.read.load import load_all
from gpt.probe.sass.shipped import DIGEST, FILE, Shipped, dump
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.sass.check_words import UNMOVABLE
from gpt.sass.faces import ARCH, FACES
from gpt.sass.tables import table_of
from gpt.stages.sass_probe import main
from tests.probe.sass import running
from tests.sass.interp.cases import CASES
from tests.stages.cubins import compiled, element, segment
from tests.tiers import every

CASE = {case.name: case for case in CASES}
PROBES = sorted(path.stem for path in snippets.PROBES.glob("*.toml"))


@pytest.fixture
def no_ptxas(monkeypatch, tmp_path):
    """Hide every ptxas and the user's cache."""
    assert FILE.exists(), "run 'make snippets'"
    monkeypatch.setattr(find, "_iter_places", lambda environment: iter(()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def compiler(**more):
    return Compiler(ARCH, table_of(ARCH), Cache(None), **more)


def collect(count):
    """Return the beginnings of the keys of all built-in probes."""
    statements, keys = snippets.list_statements(), compiler()
    texts = {text for file in load_all(PROBES) for text in snippets.Texts(file, statements, count=count).found}
    return {keys.key(text)[: 2 * DIGEST] for text in texts}


def test_it_is_current():
    """If this fails, lowering or a probe has changed since `make snippets`, or a body isn't enumerated anymore."""
    assert FILE.exists() and collect(count=False) <= Shipped().keys(), "run 'make snippets'"


@pytest.mark.full
def test_new_file_is_identical(tmp_path):
    """The file has no leftovers from an older ptxas or from older code."""
    snippets.build(tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == FILE.read_bytes()
    assert Shipped().keys() == collect(count=False) | collect(count=True)


def test_cached_bodies_are_not_compiled_again(no_ptxas, monkeypatch, tmp_path):
    (tmp_path / "sched.toml").write_text((snippets.PROBES / "block_sched.toml").read_text())
    monkeypatch.setattr(snippets, "PROBES", tmp_path)
    path = tmp_path / "snippets"
    path.write_bytes(FILE.read_bytes())
    snippets.build(path)
    assert Shipped(path).keys() < Shipped().keys()
    assert all(Shipped(path).get(key) == Shipped().get(key) for key in sorted(Shipped(path).keys()))
    path.write_bytes(dump([{"ab" * 32: b"outdated"}]))
    with pytest.raises(MissingError):
        snippets.build(path)


def test_no_face_is_left_out():
    """The faces of random words are all in list_statements. The only exceptions are further instructions that can't be
    moved.
    """
    generator, listed = random.Random(47), {statement.head for statement in snippets.list_statements()} | {"exit"}
    for (name, operation), face in FACES.items():
        if isinstance(face, str) or name in UNMOVABLE:
            continue
        opcode = snippets.ARRIVE if name == "SYNCS" else operation
        for _ in range(3000):
            few = generator.getrandbits(20) & generator.getrandbits(20)
            found = face(opcode | few << 72 | generator.choice((0, snippets.RESULT)))
            assert not found or found in listed, name


LAUNCHES = ["reduction-2x256-5", "stack-2x33-5", "leaving-2x33-5", "widths-2x64-5", "products-2x64-5", "groups-2x50-5"]


@pytest.mark.parametrize("name", every(3, LAUNCHES))
def test_built_in_probes_need_no_ptxas(no_ptxas, name):
    case = CASE[name]
    for probes in (["block_sched", "gmem_bytes"], ["gmem_bytes", "warp_sched"], ["dmat"], ["inst_latency"]):
        made = weave(running.image(case.file), case.kernel, ARCH, load_all(probes), compiler())
        assert made.data == running.woven(case, *probes).data
        assert all(site.woven == site.matched for site in made.sites)


def test_other_probes_say_once_that_they_need_one(no_ptxas, monkeypatch, tmp_path, capfdbinary):
    probe, stream = tmp_path / "loads.toml", tmp_path / "in.mp"
    probe.write_text('[map.m]\nlevel = "thread"\ncap = 1\ndata = {a = "u64"}\n\n[probe.loads]\nposition = "ld.global"\n'
                     'before = "SAVE [m] {ADDR};"\n')  # fmt: skip
    stream.write_bytes(segment(element(compiled())))
    monkeypatch.setattr("sys.argv", ["gpt-sass-probe", "-p", str(probe), str(stream)])
    assert main() == 4
    (line,) = capfdbinary.readouterr().err.decode().splitlines()
    assert line.startswith("gpt-sass-probe: error: no ptxas: probes whose code isn't part of the package need one; ")
    assert line.endswith(" install nvidia-cuda-nvcc")
    monkeypatch.setattr("sys.argv", ["gpt-sass-probe", "-p", "block_sched", "-p", "gmem_bytes", str(stream)])
    assert main() == 0
    assert not capfdbinary.readouterr().err


def test_build_without_ptxas_is_reported(monkeypatch, tmp_path, capsys, no_ptxas):
    monkeypatch.setattr("sys.argv", ["snippets", str(tmp_path / "file")])
    assert snippets.main() == 0
    assert capsys.readouterr().err.startswith("snippets: warning: no probe is compiled, so gpt-sass-probe will need")
    assert not (tmp_path / "file").exists()
