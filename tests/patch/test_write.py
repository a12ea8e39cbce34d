"""Libraries are written completely or not at all; originals are kept, and other users' links don't matter."""

import io
import os
import shutil
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpt.base.errors import GptError
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from gpt.patch.backup import keep_backup
from gpt.patch.plan import Copy, Plan
from gpt.patch.write import written
from gpt.stream import records, wire
from tests.patch import checks
from tests.stages.tools import extract, kept, located, patch, run
from tests.tiers import first

USED = "_Z3onePf\n"
BACKUP = ".gpt-orig"


@pytest.fixture
def library(sample, tmp_path):
    """Return a copy to modify, in its own folder."""
    (tmp_path / "lib").mkdir()
    return Path(shutil.copy(sample("balance"), tmp_path / "lib" / "libbalance.so"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def parsed(data):
    return list(wire.read_records(io.BytesIO(data), "stream"))


def failure(done, words, status=1):
    """Check that the run failed with a one-line message."""
    assert done.status == status, done.err
    (line,) = done.err.splitlines()
    assert line.startswith("gpt-patch: error: ")
    assert words in line
    assert not done.kind("patched")


@pytest.mark.parametrize("mode", first("compact", "fill", "hole"))
def test_in_place_and_back(library, mode):
    os.chmod(library, 0o640)
    before, inode = library.read_bytes(), library.stat().st_ino
    record = patch(located(library, USED), "--in-place", "--mode", mode)
    assert record["output"] == str(library)
    backup = library.with_name(library.name + BACKUP)
    assert sorted(path.name for path in library.parent.iterdir()) == [library.name, backup.name]
    assert (backup.read_bytes(), backup.stat().st_ino) == (before, inode)
    assert stat.S_IMODE(library.stat().st_mode) == 0o640
    checks.check_host(backup, library)
    done = run("gpt-patch", "--restore", library)
    assert (done.status, done.out) == (0, b"")
    assert contents(library.parent) == {library.name: before}
    done = run("gpt-patch", "--restore", library)
    assert (done.status, done.err.count("\n")) == (4, 1)


def test_a_second_time_keeps_the_first_original(library):
    before = library.read_bytes()
    patch(located(library, USED, "--keep", "many"), "--in-place")
    between = library.read_bytes()
    patch(located(library, USED), "--in-place")
    assert len(library.read_bytes()) < len(between) < len(before)
    assert library.with_name(library.name + BACKUP).read_bytes() == before
    assert run("gpt-patch", "--restore", library).status == 0
    assert library.read_bytes() == before


def test_once_is_once(library):
    """--once also works if a backup was made but the library wasn't replaced. Then both names belong to one file."""
    os.link(library, library.with_name(library.name + BACKUP))
    patch(located(library, USED, "--keep", "many"), "--in-place", "--once")
    between = contents(library.parent)
    failure(run("gpt-patch", "--in-place", "--once", data=located(library, USED)), "was replaced before: restore it")
    assert contents(library.parent) == between
    assert run("gpt-patch", "-o", "out", "--once", data=b"").status == 2


def test_the_original_of_another_version_is_not_used_as_a_backup(library, sample):
    other = library.with_name(library.name + BACKUP)
    shutil.copy(sample("pie"), other)
    before = library.read_bytes()
    failure(run("gpt-patch", "--in-place", data=located(library, USED)), "is the original of another version")
    assert contents(library.parent) == {library.name: before, other.name: sample("pie").read_bytes()}


PLANTED = {
    "a link": lambda backup: backup.symlink_to("other.so"),
    "a dangling link": lambda backup: backup.symlink_to("none"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", first(*PLANTED))
def test_only_a_regular_file_is_a_backup(library, kind):
    """If it were used as a backup, the original would be lost, or restored as something else."""
    shutil.copy(library, library.with_name("other.so"))
    before, made = library.read_bytes(), located(library, USED)
    PLANTED[kind](library.with_name(library.name + BACKUP))
    failure(run("gpt-patch", "--in-place", data=made), "is not a backup", 1)
    done = run("gpt-patch", "--restore", library)
    assert (done.status, "is not a backup" in done.err) == (1, True)
    assert library.read_bytes() == before
    assert not library.is_symlink()


def test_in_a_folder_of_everybody_a_backup_has_the_right_owner(library):
    if os.geteuid():
        pytest.skip("only root makes files of others")
    before, made = library.read_bytes(), located(library, USED)
    backup = Path(shutil.copy(library, library.with_name(library.name + BACKUP)))
    os.chown(backup, 4242, 4242)
    os.chmod(library.parent, 0o1777)
    failure(run("gpt-patch", "--in-place", data=made), "has another owner, in a folder where everybody may write")
    assert run("gpt-patch", "--restore", library).status == 1
    assert library.read_bytes() == before
    os.chmod(library.parent, 0o755)
    assert patch(made, "--in-place")["mode"] == "compact"


def test_without_a_backup(library):
    before = library.stat()
    assert patch(located(library, USED), "--in-place", "--no-backup")["mode"] == "compact"
    assert library.stat().st_size < before.st_size
    assert list(contents(library.parent)) == [library.name]
    assert run("gpt-patch", "-o", "out", "--no-backup", data=b"").status == 2


def test_file_replaced_meanwhile(library):
    """An upgrade may run at the same time."""
    with open(library, "rb") as file:
        os.replace(shutil.copy(library, library.with_name("new")), library)
        with pytest.raises(GptError, match="another process replaced it"):
            keep_backup(library, file.fileno(), parse_image(Source(str(library), file.fileno())))
    assert list(contents(library.parent)) == [library.name]


def test_nothing_is_replaced_in_another_folder_that_takes_its_place(library, tmp_path):
    """The owner of a folder above the library may swap it for another one and back while root writes."""
    (other := tmp_path / "other").mkdir()
    (other / library.name).write_text("root's")
    with open(library, "rb") as file:
        lib = library.parent.rename(tmp_path / "moved")
        other.rename(library.parent)
        with (
            pytest.raises(GptError, match="another process"),
            written(library, file.fileno(), Plan("compact", [Copy(0, 8)], [], [], {}), in_place=True),
        ):
            library.parent.rename(other)
            lib.rename(library.parent)
    assert contents(other) == {library.name: b"root's"}


def test_symlink_replacing_a_folder_is_not_followed(library, tmp_path):
    """The swap happens before the file is opened and is undone at the end; the other file has the same contents."""
    plan = Plan("compact", [Copy(0, 8)], [], [], {})
    lib = library.parent.rename(tmp_path / "moved")
    library.parent.symlink_to(lib)
    shutil.copy(library, lib / (library.name + BACKUP))
    before = contents(lib)
    with open(library, "rb") as file:
        with (
            pytest.raises(GptError, match="Not a directory"),
            written(library, file.fileno(), plan, in_place=True),
        ):
            pass
        with pytest.raises(OSError, match="Not a directory"):
            keep_backup(library, file.fileno(), parse_image(Source(str(library), file.fileno())))
    assert contents(lib) == before


def test_a_link_stays_a_link(library, tmp_path):
    link = tmp_path / "link.so"
    link.symlink_to("lib/libbalance.so")
    before = library.read_bytes()
    patch(located(link, USED), "--in-place")
    assert os.readlink(link) == "lib/libbalance.so"
    assert library.stat().st_size < len(before)
    assert library.with_name(library.name + BACKUP).read_bytes() == before
    assert run("gpt-patch", "--restore", link).status == 0
    assert os.readlink(link) == "lib/libbalance.so"
    assert library.read_bytes() == before
    record = patch(located(link, USED), "-o", tmp_path / "out")  # with an output folder, the name of the link counts
    assert record["output"] == str(tmp_path / "out" / "link.so")
    assert not (tmp_path / "out" / "link.so").is_symlink()


def test_a_hard_link_elsewhere_keeps_the_original(library, tmp_path):
    os.link(library, tmp_path / "other.so")
    before = library.read_bytes()
    patch(located(library, USED), "--in-place")
    assert (tmp_path / "other.so").read_bytes() == before


@pytest.mark.parametrize("change", first("a byte", "longer", "gone", "a folder"))
def test_changed_file_is_refused(library, change, tmp_path):
    made = located(library, USED)
    data = library.read_bytes()
    library.unlink()
    if change == "longer":
        library.write_bytes(data + b"\0")
    elif change == "a byte":
        library.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif change == "a folder":
        library.mkdir()
    words, status = {"gone": ("No such file", 4), "a folder": ("directory", 4)}.get(change, ("has changed since", 1))
    failure(run("gpt-patch", "-o", tmp_path / "out", data=made), words, status)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_a_digest_the_build_id_counts(library, tmp_path):
    made = [{k: v for k, v in r.items() if k != "sha256"} for r in parsed(located(library, USED))]
    assert patch(b"".join(map(wire.pack, made)), "-o", tmp_path / "out")["mode"] == "compact"
    made = [{**r, "build_id": "00"} if r["kind"] == "library" else r for r in made]
    failure(run("gpt-patch", "-o", tmp_path / "out", data=b"".join(map(wire.pack, made))), "another build id")


@pytest.mark.parametrize("options", first(["--in-place"], ["-o", "out"]))
def test_dry_run_writes_nothing(library, options, tmp_path):
    made = located(library, USED)
    before = sorted(tmp_path.rglob("*"))
    done = run("gpt-patch", "-n", *options, data=made, cwd=tmp_path)
    assert done.status == 0, done.err
    (dry,) = done.kind("patched")
    assert sorted(tmp_path.rglob("*")) == before
    done = run("gpt-patch", *options, data=made, cwd=tmp_path)
    (wet,) = done.kind("patched")
    assert {**dry, "disk_after": 0} == {**wet, "disk_after": 0}


def test_the_same_directory_is_refused(library, tmp_path):
    made, before = located(library, USED), library.read_bytes()
    (tmp_path / "link").symlink_to("lib")
    for folder in (library.parent, tmp_path / "link"):
        failure(run("gpt-patch", "-o", folder, data=made), "would overwrite the library itself: use --in-place")
    assert contents(library.parent) == {library.name: before}


def test_two_libraries_of_one_name_are_refused(library, sample, tmp_path):
    (tmp_path / "other").mkdir()
    other = shutil.copy(sample("zstd"), tmp_path / "other" / library.name)
    found = kept(extract(library, other).out)
    done = run("gpt-patch", "-o", tmp_path / "out", data=found)
    assert done.status == 1
    assert f"'{library}' of this stream already has the name '{tmp_path}/out/{library.name}': --parents" in done.err
    assert [record["library"] for record in done.kind("patched")] == [str(library)]
    assert contents(tmp_path / "out") == {library.name: library.read_bytes()}  # no spans, so it's a copy
    done = run("gpt-patch", "--in-place", data=extract(library, library).out)
    assert done.status == 1


def test_an_existing_output_is_replaced(library, tmp_path):
    (tmp_path / "out").mkdir()
    old = tmp_path / "out" / library.name
    old.write_bytes(b"old")
    with open(old, "rb") as file:  # processes that have it open keep reading the old one
        patch(located(library, USED), "-o", tmp_path / "out")
        assert file.read() == b"old"
    assert old.stat().st_size > 3


def test_truncated_stream_patches_nothing(library, tmp_path):
    cut = [record for record in parsed(located(library, USED)) if record["kind"] != "library_end"]
    done = run("gpt-patch", "-o", tmp_path / "out", data=b"".join(map(wire.pack, cut)))
    failure(done, "the stream ends before the library does: not patched", 3)
    torn = located(library, USED)[:-30]
    assert run("gpt-patch", "-o", tmp_path / "out", data=torn).status == 3
    assert not any(path.suffix == ".part" for path in (tmp_path / "out").iterdir())


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
USAGE = ["", "-o a --in-place", "--restore", "--in-place --restore", "--mode x -o a", "--fill 256 -o a"]


@pytest.mark.parametrize("options", USAGE)
def test_usage(options, tmp_path):
    done = run("gpt-patch", *options.split(), cwd=tmp_path)
    assert done.status == 2, done.err
    assert list(tmp_path.iterdir()) == []


def test_an_image_without_a_file_cannot_be_patched(sample, tmp_path):
    module = records.make("module", id=1, type="fatbin", data=sample("fatbin").read_bytes())
    made = [wire.header("t", []), module, records.make("end", records=1, status=0)]
    found = extract(data=b"".join(map(wire.pack, made)))
    failure(run("gpt-patch", "-o", tmp_path / "out", data=found.out, cwd=tmp_path), "module:1: No such file", 4)


# Trouble while writing


@pytest.mark.full
def test_a_full_disk(library, tmp_path):
    """A file size limit simulates a full disk: there's no space for the output."""
    made = located(library, USED)
    (tmp_path / "stream").write_bytes(made)
    before = sorted(tmp_path.rglob("*"))
    for options in (f"-o {tmp_path}/out", "--in-place"):
        command = f"ulimit -f 8; gpt-patch {options} --mode fill {tmp_path}/stream > /dev/null"
        done = run("bash", "-c", command)
        assert done.status == 1
        assert done.err.count("\n") == 1
        assert "File too large" in done.err
        assert sorted(path for path in tmp_path.rglob("*") if path.name != "out") == before


def test_a_full_file_system(library, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts file systems")
    try:
        failure(run("gpt-patch", "-o", disk, "--mode", "fill", data=located(library, USED)), "No space left on device")
        assert list(disk.iterdir()) == []
        assert patch(located(library, USED), "-o", disk)["mode"] == "compact"  # this mode has enough space
    finally:
        subprocess.run(["umount", disk], check=True)


def test_irreplaceable_library(library):
    """An example is an immutable library. The message names the library, which is unchanged."""
    if subprocess.run(["chattr", "+i", library], capture_output=True, check=False).returncode:
        pytest.skip("only root makes files immutable, where the file system knows it")
    before = contents(library.parent)
    try:
        done = run("gpt-patch", "--in-place", data=located(library, USED))
        failure(done, f"{library}: Operation not permitted")
    finally:
        subprocess.run(["chattr", "-i", library], check=True)
    assert contents(library.parent) == before


def test_unwritable_folder(library, tmp_path):
    (tmp_path / "file").touch()
    done = run("gpt-patch", "-o", tmp_path / "file", data=located(library, USED))
    assert (done.status, done.err.count("\n")) == (1, 1)
    made = located(library, USED)
    done = run("gpt-patch", "-o", "/proc/self", data=made)
    assert done.status in (1, 4)
    assert done.err.count("\n") == 1


def writes_below(pid, folder):
    """Return whether a process has a file open in a folder, with or without a name."""
    with suppress(FileNotFoundError):
        return any(os.readlink(link).startswith(f"{folder}/") for link in Path(f"/proc/{pid}/fd").iterdir())


def test_a_file_system_without_nameless_files(library, tmp_path, monkeypatch):
    """On a file system without O_TMPFILE, the partial file has a name from the start, and must not be left behind."""
    monkeypatch.setattr("gpt.base.outputs._open_nameless", lambda folder, mode: None)
    out = tmp_path / "out" / library.name
    out.parent.mkdir()
    with open(library, "rb") as file:
        plan = Plan("copy", [Copy(0, 1000)], [], [], {})
        with written(out, file.fileno(), plan):
            (part,) = out.parent.iterdir()
            assert (part.name[:5], part.suffix, part.stat().st_mode & 0o777) == (".gpt-", ".part", 0o600)
        assert contents(out.parent) == {library.name: library.read_bytes()[:1000]}
        with pytest.raises(GptError), written(out, file.fileno(), plan):
            raise OSError(28, "No space left on device")
    assert contents(out.parent) == {library.name: library.read_bytes()[:1000]}


def test_library_replaced_last_by_another_process(library):
    """The other process replaces the library after all checks, just before the new file takes its name."""
    with open(library, "rb") as file:
        plan = Plan("copy", [Copy(0, 1000)], [], [], {})
        with pytest.raises(GptError, match="extract it again"), written(library, file.fileno(), plan, in_place=True):
            (other := library.with_name("other")).write_bytes(b"other")
            other.replace(library)
    assert contents(library.parent) == {library.name: b"other"}


def test_patching_that_ended_before_the_new_file_took_its_name(library):
    """The original then has both names, and rename() does nothing if both names are the same file."""
    before = contents(library.parent)
    os.link(library, library.with_name(library.name + BACKUP))
    assert run("gpt-patch", "--restore", library).status == 0
    assert contents(library.parent) == before


@pytest.mark.parametrize(
    "number", first(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL), ids=lambda n: n.name
)
def test_a_signal_in_the_middle(sample, number, tmp_path, cold):
    """Nothing is left over, even after SIGKILL, and the old output is unchanged."""
    library = sample("large")
    data = kept(extract(library).out)
    for _ in range(50):  # on a busy machine it may be done between two checks
        (tmp_path / library.name).write_bytes(b"old")
        command = ["gpt-patch", "-o", tmp_path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            process.stdin.write(data)
            process.stdin.close()
            while process.poll() is None and not writes_below(process.pid, tmp_path):
                time.sleep(0.001)
            process.send_signal(number)
            if process.wait(30) == -number:
                break
    else:
        pytest.fail("it was never seen to write")
    assert [path.name for path in tmp_path.iterdir()] == [library.name]
    assert (tmp_path / library.name).read_bytes() == b"old"
