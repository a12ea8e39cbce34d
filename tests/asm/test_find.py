"""The choice of a ptxas."""

import os

import pytest

from gpt.asm import find
from gpt.asm.backends import parse_targets
from gpt.asm.targets import GpuTarget, find_version
from gpt.base.errors import GptError, MissingError, UsageError
from tests.asm.fake import ptxas

SM_90 = GpuTarget(9, 0, "")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Return a ptxas for each version in each place; `environment(names)` leads only to these places."""
    packages = {"nvidia": tmp_path / "site" / "nvidia", "triton": tmp_path / "site" / "triton"}
    homes = {
        "GPT_PTXAS": tmp_path / "given",
        "PATH": tmp_path / "path",
        "CUDA_HOME": tmp_path / "cuda" / "bin",
        "nvidia": packages["nvidia"] / "cu13" / "bin",
        "triton": packages["triton"] / "backends" / "nvidia" / "bin",
    }
    found = {name: ptxas(folder, "exit 1", release=f"12.0.{n}") for n, (name, folder) in enumerate(homes.items())}
    there = set(homes)
    monkeypatch.setattr(find, "_package", lambda name: [packages[name]] if name in there else [])

    def environment(*names):
        there.clear()
        there.update(names)
        values = {"GPT_PTXAS": found["GPT_PTXAS"], "PATH": homes["PATH"], "CUDA_HOME": tmp_path / "cuda"}
        return {"PATH": "/nonexistent"} | {name: str(values[name]) for name in names if name in values}

    environment.found = found
    return environment


def test_the_order(places):
    names = list(places.found)
    for first in range(len(names)):
        tool = find.Tools(None, places(*names[first:])).choose((8, 0), SM_90)
        assert tool.path == str(places.found[names[first]])
    given = places.found["triton"]
    assert find.Tools(str(given), places(*names)).choose((8, 0), SM_90).path == str(given)


def test_the_wheels_of_cuda_12_and_11(places, tmp_path):
    tool = ptxas(tmp_path / "site" / "nvidia" / "cuda_nvcc" / "bin", "exit 1")
    places.found["nvidia"].unlink()
    assert find.Tools(None, places("nvidia")).choose(None, SM_90).path == str(tool)


def test_none_says_what_to_install(places):
    said = r"no ptxas: give --ptxas FILE, or install one: .* -m pip install nvidia-cuda-nvcc"
    with pytest.raises(MissingError, match=said):
        find.Tools(None, places()).first()


def test_a_chosen_ptxas_must_exist(places, tmp_path):
    with pytest.raises(MissingError, match=r"absent: --ptxas: no such executable"):
        find.Tools(str(tmp_path / "absent"), places("PATH"))
    with pytest.raises(MissingError, match="GPT_PTXAS"):
        find.Tools(None, places("PATH") | {"GPT_PTXAS": "/absent"}).first()
    with pytest.raises(MissingError, match="false"):  # if the chosen ptxas doesn't answer, no other one replaces it
        find.Tools(None, places("PATH") | {"GPT_PTXAS": "/bin/false"}).first()


def test_a_name_is_one_on_path_and_a_path_is_one(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ptxas(tmp_path, "exit 1", release="11.1.1")
    monkeypatch.setenv("PATH", str(places.found["PATH"].parent), prepend=os.pathsep)
    assert find.Tools("ptxas", places()).choose(None, SM_90).release == (12, 0, 1)
    assert find.Tools("./ptxas", places()).choose(None, SM_90).path == str(tmp_path / "ptxas")


def test_newest_ptxas_with_support_replaces_one_without(places, tmp_path):
    environment = places("PATH", "CUDA_HOME", "nvidia", "triton")
    ptxas(tmp_path / "cuda" / "bin", "exit 1", release="12.8.1", versions="8.0 8.7")
    ptxas(tmp_path / "site/nvidia/cu13/bin", "exit 1", release="13.2.1", versions="8.0 9.2", targets="sm_90 sm_121")
    ptxas(tmp_path / "site/triton/backends/nvidia/bin", "exit 1", release="13.1.5", versions="8.0 9.1")
    ptxas(tmp_path / "path", "exit 1", release="12.0.3", versions="8.0")
    tools = find.Tools(None, environment)
    assert tools.choose((8, 0), SM_90).release == (12, 0, 3)
    assert tools.choose(None, SM_90).release == (12, 0, 3)
    assert tools.choose((8, 7), SM_90).release == (13, 2, 1)
    assert tools.choose((8, 0), GpuTarget(12, 1, "")).release == (13, 2, 1)
    with pytest.raises(MissingError, match=r"12\.0\.3 .* doesn't know PTX 9\.3; none of 4 installed does"):
        tools.choose((9, 3), SM_90)
    assert tools.choose((8, 0), SM_90).release == (12, 0, 3), "earlier questions change nothing"


def test_all_of_path_is_searched_for_a_newer_one(places, tmp_path):
    ptxas(tmp_path / "later", "exit 1", release="13.3.1", versions="8.0 9.3")
    environment = places("PATH")
    environment["PATH"] = f":/absent:{environment['PATH']}:{tmp_path / 'later'}"
    tools = find.Tools(None, environment)
    assert tools.choose((8, 0), SM_90).release == (12, 0, 1)
    assert tools.choose((9, 3), SM_90).release == (13, 3, 1)


def test_named_ptxas_is_not_replaced(places):
    given = places.found["triton"]
    with pytest.raises(MissingError, match=r"doesn't know PTX 9\.1: install"):
        find.Tools(str(given), places("PATH")).choose((9, 1), SM_90)


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho hello\n", "", "#!/absent\n"])
def test_files_that_are_not_ptxas_are_skipped(places, tmp_path, text):
    environment = places("PATH", "nvidia")
    (tmp_path / "path" / "ptxas").write_text(text)
    assert find.Tools(None, environment).choose(None, SM_90).path == str(places.found["nvidia"])
    with pytest.raises(MissingError, match=f"{tmp_path}/path/ptxas: .*: .* -m pip install"):
        find.Tools(None, places("PATH")).first()


def test_hanging_ptxas_is_abandoned(places, tmp_path, monkeypatch):
    monkeypatch.setattr(find, "PATIENCE", 0.1)
    (tmp_path / "path" / "ptxas").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(MissingError, match="does not answer --version"):
        find.Tools(None, places("PATH")).first()


def test_one_too_old_to_list_what_it_knows_is_tried(places, tmp_path):
    path = tmp_path / "path" / "ptxas"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo release 10.1, V10.1.243\n')
    assert find.Tools(None, places("PATH")).choose((6, 4), SM_90).release == (10, 1, 243)


def test_the_real_one_is_found():
    tools = find.Tools(None, {"PATH": os.defpath})
    tool = tools.choose((8, 0), GpuTarget(9, 0, "a"))
    assert not tool.versions or (8, 0) in tool.versions  # ptxas 12.8 doesn't tell
    assert "sm_90a" in tool.targets and tool.release >= (12, 0)


# Targets


def test_targets_are_parsed():
    assert [str(t) for t in parse_targets("sm_90a,sm_80,,sm_90a,sm_120f,sm_75")] == [
        "sm_90a",
        "sm_80",
        "sm_120f",
        "sm_75",
    ]


@pytest.mark.parametrize(
    "text", ["", ",", "sm_9", "9", "compute_90", "sm_90b", "sm_90 ", "SM_90", "sm_90\n", "sm_9\u0660"]
)
def test_invalid_targets_are_refused(text):
    with pytest.raises(UsageError):
        parse_targets(text)


@pytest.mark.parametrize(
    ("source", "fits", "others"),
    [
        ("sm_80", "sm_80 sm_86 sm_90 sm_90a sm_120f", "sm_75"),
        ("sm_90a", "sm_90a", "sm_90 sm_100a sm_100"),
        ("sm_100f", "sm_100f sm_100a sm_103f sm_103a sm_100 sm_103", "sm_110 sm_110f sm_120a sm_90a"),
    ],
)
def test_code_is_assembled_for_compatible_targets_only(source, fits, others):
    (target,) = parse_targets(source)
    assert all(one.runs(target) for one in parse_targets(fits.replace(" ", ",")))
    assert not any(one.runs(target) for one in parse_targets(others.replace(" ", ",")))


@pytest.mark.full
def test_ptxas_agrees_on_supported_targets(tmp_path):
    from gpt.asm.backend import Options
    from gpt.asm.ptxas import Runner

    tool = find.Tools(None).choose((9, 0), SM_90)
    names = ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_100a", "sm_103", "sm_103a", "sm_110f", "sm_120a"]
    targets = parse_targets(",".join(name for name in names if name in tool.targets))
    assert len(targets) > 3
    for source in targets:
        text = f".version 9.0\n.target {source}\n.address_size 64\n.visible .entry k() {{ ret; }}\n".encode()
        for target in targets:
            try:
                Runner(60).assemble(tool, text, "m", target, Options())
            except GptError as error:
                assert not target.runs(source), error
            else:
                assert target.runs(source), f"{source} {target}"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (b"//\n.version 8.3\n", (8, 3)),
        (b"  .version\t7.0 \n.version 9.0", (7, 0)),
        (b"// .version 8.3\n", None),
        (b"", None),
        (b".version 99999999999999.1", None),
    ],
)
def test_version_of_a_module(text, version):
    assert find_version(text) == version


def test_ptxas_without_version_list_reports_its_targets(tmp_path):
    path = ptxas(tmp_path, "exit 0", targets="sm_75")
    path.write_text(path.read_text().replace("--list-version) ", "--list-version) exit 1; "))
    tools = find.Tools(str(path), {})
    assert tools.choose((8, 7), GpuTarget(7, 5, "")).versions == frozenset()
    with pytest.raises(MissingError, match="doesn't know sm_90"):
        tools.choose((8, 7), SM_90)


def test_compiler_with_unclosed_quote():
    """A wrong setting isn't an internal error."""
    assert find.split_compiler({"CC": "ccache 'my gcc' -m64"}) == ["ccache", "my gcc", "-m64"]
    assert find.split_compiler({"CC": " "}) == find.split_compiler({}) == ["cc"]
    for text in ("'", "gcc 'x", "gcc \\"):
        with pytest.raises(MissingError, match=r"^CC=.*: no "):
            find.split_compiler({"CC": text})
        with pytest.raises(MissingError):
            list(find.iter_files(None, {"CC": text}))
