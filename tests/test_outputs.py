"""Files appear under their name when complete, or not at all, whatever others put into the folder."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.asm import images
from gpt.base import outputs
from gpt.base.cache import Cache
from gpt.base.outputs import is_user, open_stream, replacing
from gpt.compat import negativa
from tests import loaded
from tests.runtime import hooked
from tests.stages.tools import extract, located, run
from tests.tiers import first
from tests.trace import forge


@pytest.fixture(params=["nameless", "named"])
def how(request, monkeypatch):
    """Make files as on a file system with O_TMPFILE, or as on one without."""
    if request.param == "named":
        monkeypatch.setattr(outputs, "_open_nameless", lambda folder, mode: None)
    return request.param


def test_a_full_disk_names_the_file(tmp_path):
    """The error names the file even if the rest of the data can't be written until the file is closed."""
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    source = "from pathlib import Path\nfrom gpt.base.outputs import replacing\n" + limit
    source += "try:\n    with replacing(Path('x')) as file:\n        file.writelines([bytes(5000)] * 9)\n"
    source += "except OSError as error:\n    print(error.filename)\n"
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, names(tmp_path)) == ("x\n", [])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_appears_at_the_end(how, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        parts = [name for name in names(tmp_path) if name != "x"]
        assert len(parts) == (how == "named")
        assert all(name.startswith(".gpt-") and len(name) > 32 for name in parts)
    assert (names(tmp_path), path.read_bytes()) == (["x"], b"new")


def test_it_does_not_appear(how, tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    for error in (OSError(28, "No space left on device"), ValueError(), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, replacing(tmp_path / "x") as file:
            file.write(b"new")
            raise error
        assert getattr(caught.value, "filename", str(tmp_path / "x")) == str(tmp_path / "x")
    assert (names(tmp_path), (tmp_path / "x").read_bytes()) == (["x"], b"old")


def test_the_mask_counts(how, tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "x"):
            pass
        with replacing(tmp_path / "y", mode=0o600) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_links_are_replaced_not_followed(how, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "else").write_bytes(b"else")
    (tmp_path / "real" / "x").symlink_to("../else")
    os.link(tmp_path / "else", tmp_path / "real" / "y")
    for name in ("x", "y"):
        with replacing(tmp_path / "folder" / name) as file:
            file.write(b"new")
        assert not (tmp_path / "real" / name).is_symlink()
        assert (tmp_path / "real" / name).read_bytes() == b"new"
    assert (tmp_path / "else").read_bytes() == b"else"


def test_only_files_are_replaced(how, tmp_path):
    """Links to anything but a regular file, such as /dev/stdout, aren't replaced either, although root has the
    permission.
    """
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").symlink_to("pipe")
    (tmp_path / "there").symlink_to("folder")
    (tmp_path / "file").touch()
    (tmp_path / "open").symlink_to(f"/proc/self/fd/{os.open(tmp_path / 'file', os.O_WRONLY)}")
    for name in ("pipe", "folder", "out", "there", "open"):
        with pytest.raises(OSError, match="is not a regular file") as caught, replacing(tmp_path / name):
            pass
        assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "x"):
        pass
    assert names(tmp_path) == ["file", "folder", "open", "out", "pipe", "there"] and (tmp_path / "open").is_symlink()
    (tmp_path / "nothing").symlink_to("none")
    with replacing(tmp_path / "nothing"):
        pass
    assert not (tmp_path / "nothing").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_planted_pipe_gets_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.chown(tmp_path / "pipe", 65534, 65534)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_stream(tmp_path / "pipe") as file:  # nobody else may write to the folder
        file.write(b"x")
    tmp_path.chmod(0o1777)
    with pytest.raises(OSError, match="is another user's"):
        open_stream(tmp_path / "pipe")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
    with pytest.raises(OSError, match="is another user's"):  # without waiting for a reader
        open_stream(tmp_path / "pipe")


def test_the_longest_name(how, tmp_path):
    with replacing(tmp_path / ("x" * 255)):
        pass
    assert names(tmp_path) == ["x" * 255]


def test_a_replaced_temporary_file_is_not_renamed(tmp_path, monkeypatch):
    """Only the owner of the folder can replace it."""
    monkeypatch.setattr(outputs, "_open_nameless", lambda folder, mode: None)
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(OSError, match="another process renamed or replaced it"), replacing(tmp_path / "x") as file:
        file.write(b"new")
        (part,) = tmp_path.glob(".gpt-*")
        part.unlink()
        part.write_bytes(b"planted")
    assert (names(tmp_path), (tmp_path / "x").read_bytes()) == (["x"], b"old")


def test_a_planted_temporary_name_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "_open_nameless", lambda folder, mode: None)
    monkeypatch.setattr(outputs.os, "urandom", lambda size: b"\0" * size)
    (tmp_path / "victim").write_bytes(b"victim")
    (tmp_path / f".gpt-{'00' * 16}.part").symlink_to("victim")
    with pytest.raises(FileExistsError), replacing(tmp_path / "x"):
        pass
    assert (tmp_path / "victim").read_bytes() == b"victim"


def planted(tool, *names_):
    """Return a tool's command, after putting files at all names that could be derived from its process id."""
    files = " ".join(f'"{name}"' for name in names_)
    return ["bash", "-c", f'for f in {files}; do echo planted >"$f"; done; exec {tool} "$@"', "-"]


def test_gpt_patch_finds_a_planted_part(sample, tmp_path):
    """In the past, one file was checked, and a different one got its name."""
    library, out = sample("balance"), tmp_path / "out"
    out.mkdir()
    made = located(library, "_Z3onePf\n")
    command = planted("gpt-patch", f"{out}/.{library.name}.$$.part")
    done = run(*command, "-o", out, data=made)
    assert done.status == 0, done.err
    assert (out / library.name).stat().st_size > 1000
    assert [path.read_text() for path in out.glob(".*")] == ["planted\n"]


def test_planted_links_are_not_followed(sample, tmp_path, monkeypatch):
    """None of our writers uses a name whose only unknown part is the process id."""
    process = os.getpid()
    for name in ("k.1.sm_90.cubin", "t.json", "libx.so.json"):
        (tmp_path / f".{name}.{process}").symlink_to("victim")
    images.save(tmp_path, {"module": "k.so#1", "id": 1, "arch": "sm_90", "kind": "cubin", "data": b"data"})
    negativa.write_trace(tmp_path / "t.json", [], [])
    negativa.write_spans(tmp_path, "libx.so", [])
    Cache(tmp_path / "cache").put("0" * 64, b"x")
    assert not (tmp_path / "victim").exists()
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert not list(tmp_path.rglob(".gpt-*"))


def test_save_names_the_obstacle(sample, tmp_path):
    done = extract("--save", tmp_path / "out", sample("cubin"))
    (saved,) = (tmp_path / "out").iterdir()
    saved.unlink()
    os.mkfifo(saved)
    done = extract("--save", tmp_path / "out", sample("cubin"))
    assert done.status == 1
    assert f"{saved}: is not a regular file" in done.err


def test_proc_is_not_needed(tmp_path):
    """Without /proc, a file without a name could never get one."""
    code = (
        "import os, pathlib; from gpt.base import outputs; os.path.exists = lambda path: False\n"
        "with outputs.replacing(pathlib.Path('x')) as file: file.write(b'x')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={"PYTHONPATH": str(Path.cwd())})
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("gpt-analyze timeline -o", "t.html"),
        ("gpt-analyze export --format sqlite -o", "t.sqlite"),
        ("gpt-analyze summary --plot", "p.png"),
        ("gpt-attach -o", "t.mp"),
        ("gpt-locate --used garbage --trace-json", "t.json"),
    ],
)
def test_missing_folder_is_reported_before_work_starts(command, name, tmp_path):
    """The input is wrong, too, which would be reported first if it were read before the output was checked."""
    (tmp_path / "garbage").write_bytes(b"\x85\xa4")
    for folder, said in (("absent", "No such file or directory"), ("garbage", "Not a directory")):
        done = loaded.run([*command.split(), f"{folder}/{name}", "garbage"], cwd=tmp_path)
        assert f"error: {folder}/{name}: {said}\n" in done.stderr.decode() and done.stderr.count(b"\n") == 1
        assert done.returncode == (4 if folder == "absent" else 1)
    assert names(tmp_path) == ["garbage"]


def test_no_user_matches_without_user_ids():
    code = "import ctypes, os; ctypes.CDLL(None).unshare(0x10000000); from gpt.base.outputs import is_user;"
    code += "print(os.geteuid(), is_user(os.stat('/').st_uid, os.geteuid()), is_user(7, 8))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if done.stdout.split()[0] != "65534":
        pytest.skip("no user namespaces here")
    assert done.stdout == "65534 False False\n"
    assert is_user(os.geteuid(), 4242, os.geteuid()) and not is_user(os.geteuid() + 1, os.geteuid())


@pytest.mark.parametrize("whose", first("another user's", "ours"))
@pytest.mark.parametrize("tool", ["extract", "asm", "patch", "locate", "dump", "hook", "neutrino"])
def test_a_folder_is_followed_only_by_a_link_of_this_users(tool, whose, sample, tmp_path):
    """Root once wrote libraries, code and traces to the target of another user's link."""
    if os.geteuid():
        pytest.skip("only root makes links of other users")
    (tmp_path / "private").mkdir()
    (link := tmp_path / "d").symlink_to("private")
    (link.parent / "k.ptx").write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n")
    if whose == "another user's":
        os.chown(link, 2002, 2002, follow_symlinks=False)
    commands = {
        "extract": ["gpt-extract", "--save", link, sample("cubin")],
        "asm": ["sh", "-c", f"gpt-extract --ptx k.ptx | gpt-asm --arch host --save {link}"],
        "patch": ["gpt-patch", "-o", link],
        "locate": ["gpt-locate", "--used", "list", "--arch", "sm_90", "--spans-json", link],
        "dump": ["gpt-dump", "--dumps", link],
        "hook": [hooked.runtime() / "gpt-hook", "run", "--save-modules", link, "true"],
        "neutrino": ["gpt-neutrino", "-p", "block_sched", "--trace", link, "true"],
    }
    (tmp_path / "list").write_text("_Z3onePf\n")
    match tool:
        case "patch":
            made = located(sample("balance"), "_Z3onePf\n")
        case "locate":
            made = extract(sample("balance")).out
        case _:
            made = forge.pack(forge.trace())
    done = run(*commands[tool], data=made, cwd=tmp_path)
    if whose == "ours":
        assert "symbolic link" not in done.err
        assert tool in ("dump", "hook", "neutrino") or list((tmp_path / "private").iterdir())
    else:
        assert f"{link}: is a symbolic link that another user may have made\n" in done.err
        assert done.status == 1
        assert not list((tmp_path / "private").iterdir())
