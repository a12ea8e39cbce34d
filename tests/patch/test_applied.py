"""gpt-debloat --apply writes lists of files. --restore deletes them, so they must belong to the user."""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.tiers import full


def restore(folder):
    env = os.environ | {"XDG_STATE_HOME": str(folder)}
    return subprocess.run(["gpt-debloat", "--restore"], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shape", ["link", "link above", "owner", "others write"])
def test_nothing_is_deleted_where_another_user_could_have_led_us(tmp_path, shape):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    (home := tmp_path / "home").mkdir()
    (home / "notes.txt").write_text("precious")
    (gpt := tmp_path / "state" / "gpt").parent.mkdir()
    match shape:
        case "link above":
            (home / "applied").mkdir()
            (home / "notes.txt").rename(home / "applied" / "notes.txt")
            gpt.symlink_to(home)
        case _:
            gpt.mkdir()
            (gpt / "applied").symlink_to(home)
            if shape == "owner":
                os.chown(gpt, 2002, 2002)
            elif shape == "others write":
                gpt.chmod(0o777)
    done = restore(tmp_path / "state")
    assert done.returncode == 1 and done.stderr.startswith(f"gpt-debloat: error: {gpt}")
    assert "set XDG_STATE_HOME" in done.stderr
    assert [path.read_text() for path in home.rglob("notes.txt")] == ["precious"]


def test_lists_of_ones_own_are_read(tmp_path):
    (lists := tmp_path / "gpt" / "applied").mkdir(parents=True)
    (lists / "one").write_bytes(b"/nothing\0")
    assert restore(tmp_path).stdout == "libraries restored: 0, from 0B of backups\n"
    assert restore(tmp_path).returncode == 4


@pytest.mark.parametrize("name", ["-delete", "-fls", "-exec", "!", "(", ",", "-r"])
@pytest.mark.parametrize("option", ["-r", "--recursive="])
def test_folder_name_is_not_parsed_by_find(tmp_path, name, option):
    """In the past, find took a folder named '-delete' for an instruction, and deleted everything in the current
    folder.
    """
    (backup := tmp_path / name / "lib.so.gpt-orig").parent.mkdir()
    backup.write_bytes(bytes(4096))
    (tmp_path / "notes.txt").write_text("precious")
    words = [option + name] if option.endswith("=") else [option, name]
    line = ["gpt-debloat", "--restore", "-n", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"./{name}/lib.so.gpt-orig" in done.stdout and "backups: 1," in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "notes.txt"])


# Environments as there are some.


def apply_to(folder, state, *options, prefix=()):
    command = [*prefix, "gpt-debloat", "--arch", "sm_90", "--apply", "--recompress", *options, "-r", folder]
    env = os.environ | {"XDG_STATE_HOME": str(state)}
    return subprocess.Popen(
        list(map(str, command)), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def digests(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("at", [full("liba.so"), full("below")])
def test_a_link_of_another_user_leads_nowhere(sample, tmp_path, at):
    """Root slims an environment whose owner has put in a link to one of root's own libraries, or to its folder."""
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    (environment := tmp_path / "env").mkdir()
    (system := tmp_path / "system").mkdir()
    library = Path(shutil.copy(sample("none"), system / "liba.so"))
    link = environment / at
    link.symlink_to(library if at == "liba.so" else system)
    os.chown(link, 2002, 2002, follow_symlinks=False)
    named = link if at == "liba.so" else link / "liba.so"
    before = digests(tmp_path)
    done = apply_to(named.parent, tmp_path / "state")
    fact = f"'{link}' is a link of user 2002, who doesn't own '{library}'"
    assert fact in done.communicate(timeout=120)[1] and done.returncode == 1
    assert digests(tmp_path) == before
    library.with_name("liba.so.gpt-orig").write_text("old")
    done = subprocess.run(["gpt-patch", "--restore", named], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"gpt-patch: error: {named}: {fact}\n")
    os.chown(library, 2002, 2002)  # now it belongs to the owner
    library.with_name("liba.so.gpt-orig").unlink()
    assert apply_to(named.parent, tmp_path / "state").communicate(timeout=120)[1].count("error") == 0
    assert digests(tmp_path) != before


@pytest.fixture
def environment(sample, tmp_path):
    """Return twelve libraries."""
    for number in range(12):
        (folder := tmp_path / "env" / f"p{number}").mkdir(parents=True)
        shutil.copy(sample("none"), folder / f"lib{number}.so")
    return tmp_path / "env"


@pytest.mark.full
def test_links_of_an_environment(sample, tmp_path):
    """uv and conda make such links. A file that environments share is replaced as well, with a warning."""
    site, cache = tmp_path / "env" / "lib", tmp_path / "cache"
    for folder in (site, cache, tmp_path / "src"):
        folder.mkdir(parents=True)
    shutil.copy(sample("none"), cache / "libshared.so")
    shutil.copy(sample("none"), cache / "libhard.so")
    shutil.copy(sample("none"), site / "libown.so.1")
    shutil.copy(sample("none"), tmp_path / "src" / "editable.so")
    (site / "editable.pth").write_text(str(tmp_path / "src"))  # only Python follows this
    (site / "libshared.so").symlink_to(cache / "libshared.so")
    (site / "libhard.so").hardlink_to(cache / "libhard.so")
    (site / "libown.so").symlink_to("libown.so.1")
    (site / "libnone.so").symlink_to("/nonexistent")
    (site / "again").symlink_to(".")
    before = digests(tmp_path)
    done = apply_to(tmp_path / "env", tmp_path / "state")
    said = sorted(done.communicate(timeout=120)[1].splitlines())
    assert done.returncode == 0
    assert said == [
        f"gpt-patch: warning: {site}/libhard.so: has 1 more name (hard links), which keep the original",
        f"gpt-patch: warning: {site}/libshared.so: is a link: '{cache}/libshared.so' is replaced, also for everything"
        " else that uses it",
    ]
    after = digests(tmp_path)
    assert {path for path in before if before[path] != after[path]} == {
        str(path) for path in (site / "libhard.so", site / "libown.so.1", cache / "libshared.so")
    }
    assert all(path.is_symlink() for path in (site / "libshared.so", site / "libown.so"))
    assert restore(tmp_path / "state").returncode == 0
    assert digests(tmp_path) == before


@pytest.mark.parametrize("options", [(), full(("--no-backup",))])
def test_environment_read_only(environment, tmp_path, options):
    folders = [environment, *environment.iterdir()]
    for folder in folders:
        folder.chmod(0o555)
    plain = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if not os.geteuid() else ()
    before = digests(environment)
    done = apply_to(environment, tmp_path / "state", *options, prefix=plain)
    said = done.communicate(timeout=120)[1]
    for folder in folders:
        folder.chmod(0o755)
    assert done.returncode in (1, 4)
    assert said.count(": Permission denied") == len(said.splitlines()) == len(before)
    assert "/tmp" not in said.replace(str(tmp_path), "")  # and no name of a temporary file
    assert digests(environment) == before


@pytest.mark.full
def test_two_at_once(environment, tmp_path):
    """Each library is replaced once, and its backup is the original."""
    before = digests(environment)
    both = [apply_to(environment, tmp_path / "state") for _ in range(2)]
    said = "".join(one.communicate(timeout=300)[1] for one in both)
    assert all(" it first" in line or "extract it again" in line for line in said.splitlines())
    after = digests(environment)
    assert len(after) == 2 * len(before)
    for path in before:
        assert after[path] != before[path] == after[f"{path}.gpt-orig"]
    assert restore(tmp_path / "state").returncode == 0
    assert digests(environment) == before


@pytest.mark.full
@pytest.mark.parametrize("replaced", [1, 6, 11])
def test_run_killed_midway(environment, tmp_path, replaced):
    """The next run continues, and --restore undoes both."""
    before = digests(environment)
    begun = apply_to(environment, tmp_path / "state")
    while len(list(environment.rglob("*.gpt-orig"))) < replaced and begun.poll() is None:
        time.sleep(0.01)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.communicate()
    found = digests(environment)
    assert all(digest == before[path.removesuffix(".gpt-orig")] for path, digest in found.items() if ".gpt-" in path)
    assert {path.removesuffix(".gpt-orig") for path in found} == set(before)  # there's no partial file
    done = apply_to(environment, tmp_path / "state")
    assert (done.communicate(timeout=300)[1], done.returncode) == ("", 0)
    assert len(digests(environment)) == 2 * len(before)
    assert restore(tmp_path / "state").returncode == 0
    assert digests(environment) == before


@pytest.mark.parametrize(("mode", "is_safe"), [(0o777, False), (0o775, False), (0o1777, True), (0o700, True)])
def test_temporary_files_are_only_where_nobody_else_renames_them(tmp_path, mode, is_safe):
    """In the past, another user could give the temporary folder's name to one of this user's folders, which was then
    removed.
    """
    (place := tmp_path / "group").mkdir()
    place.chmod(mode)
    command = ["gpt-debloat", "--restore", "-n", "-r", tmp_path]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(place)}, capture_output=True, text=True, check=True)
    said = f"gpt-debloat: warning: {place}: other users can rename files in it, so temporary files are in /tmp\n"
    assert done.stderr == ("" if is_safe else said)
