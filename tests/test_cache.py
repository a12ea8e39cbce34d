"""The cache of assembled code, and everything that can happen to its folder."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base import cache
from gpt.base.cache import Cache, default_folder, key_of

STALE = 3600
KEY, OTHER = key_of([b"a"]), key_of([b"b"])


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_keys_differ_where_parts_do(a, b):
    assert (key_of(a) == key_of(b)) == (a == b)


def test_stored_data_is_found_by_another_instance(tmp_path):
    Cache(tmp_path / "new" / "folder").put(KEY, b"data")
    assert Cache(tmp_path / "new" / "folder").get(KEY) == b"data"
    assert Cache(tmp_path / "new" / "folder").get(OTHER) is None
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [KEY]
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(
    "change", [lambda d: d[:-1], lambda d: b"", lambda d: d + b"x", lambda d: d[:40] + b"\0" + d[41:]]
)
def test_damaged_entries_are_ignored_and_replaced(tmp_path, change):
    Cache(tmp_path).put(KEY, b"data" * 10)
    path = tmp_path / KEY
    path.write_bytes(change(path.read_bytes()))
    assert Cache(tmp_path).get(KEY) is None
    Cache(tmp_path).put(KEY, b"again")
    assert Cache(tmp_path).get(KEY) == b"again"


def test_least_recently_used_entries_are_evicted_first(tmp_path):
    kept = Cache(tmp_path, 10_000)
    keys = [key_of([bytes([n])]) for n in range(30)]
    for n, key in enumerate(keys):
        kept.put(key, bytes(1000))
        for path in tmp_path.iterdir():  # make them a second older
            status = path.stat()
            os.utime(path, (status.st_atime, status.st_mtime - 1))
        assert kept.get(keys[0]) == bytes(1000), n
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert kept.get(keys[-1]) and not kept.get(keys[1])
    assert len(list(tmp_path.iterdir())) > 5


def test_entries_that_are_too_large_are_not_kept(tmp_path):
    kept = Cache(tmp_path, 1000)
    kept.put(KEY, bytes(500))
    assert kept.get(KEY) is None


def test_stale_partial_files_are_removed(tmp_path):
    old, new, other = (tmp_path / f".gpt-{name}.part" for name in ("0" * 32, "1" * 32, "0" * 31 + "x"))
    for path in (old, new, other):
        path.write_bytes(bytes(500))
    for path in (old, other):
        os.utime(path, (0, time.time() - STALE - 10))
    Cache(tmp_path, 900).put(KEY, bytes(40))
    assert not old.exists() and new.exists() and other.exists()


@pytest.mark.parametrize("place", ["/dev/null/below", "/proc/nothing", "/dev/full", "file", "link"])
def test_an_unusable_cache_folder_is_not_an_error(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "link")
    kept = Cache(tmp_path / place)
    kept.put(KEY, b"data")
    assert kept.get(KEY) is None
    assert Cache(None).get(KEY) is None
    Cache(None).put(KEY, b"data")


def test_full_disk_leaves_no_files(tmp_path):
    """A limit on the size of files simulates a full disk: the write fails midway."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from gpt.base.cache import Cache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "kept = Cache(Path(sys.argv[1])); kept.put('a' * 64, bytes(100000)); assert kept.get('a' * 64) is None\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_many_at_once_get_whole_results(tmp_path):
    """Processes write the same few keys to a folder that's too small. What they read is either complete or missing."""
    code = """
import os, sys
from pathlib import Path
from gpt.base.cache import Cache, key_of
kept = Cache(Path(sys.argv[1]), 200_000)
hits = 0
for turn in range(300):
    n = (turn * 7 + int(sys.argv[2])) % 30
    key, data = key_of([bytes([n])]), bytes([n]) * 10_000
    found = kept.get(key)
    assert found in (None, data)
    hits += found is not None
    if found is None:
        kept.put(key, data)
print(hits)
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    hits = [int(process.communicate()[0]) for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert sum(hits) > 0
    assert all(len(path.name) == 64 for path in tmp_path.iterdir())
    # Each process may exceed the limit by the size of the files that it doesn't know about.
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * 200_000


def test_threads_share_one(tmp_path):
    kept = Cache(tmp_path, 100_000)
    wrong = []

    def work(n):
        for turn in range(50):
            key = key_of([bytes([turn % 20])])
            if kept.get(key) not in (None, bytes([turn % 20]) * 5000):
                wrong.append(n)
            kept.put(key, bytes([turn % 20]) * 5000)

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100_000


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "gpt" / "asm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "gpt" / "asm"


def test_several_that_write_keep_to_one_limit(tmp_path):
    caches = [Cache(tmp_path, 1 << 20) for _ in range(3)]
    for number in range(40):
        for one, writer in enumerate(caches):
            writer.put(key_of([bytes([number, one])]), bytes(50_000))
            sizes = sum(path.stat().st_size for path in tmp_path.iterdir())
            assert sizes <= (1 << 20) + len(caches) * ((1 << 16) + 50_032)


def test_a_folder_writable_by_others_is_not_used(tmp_path):
    """A folder that others can write to isn't used, because the cache holds code that will run."""
    kept = Cache(tmp_path)
    kept.put(KEY, b"data")
    assert kept.get(KEY) == b"data"
    for mode in (0o720, 0o702):
        tmp_path.chmod(mode)
        assert kept.get(KEY) is None
    tmp_path.chmod(0o700)
    if not os.geteuid():
        os.chown(tmp_path, 1, 1)
        assert kept.get(KEY) is None
        os.chown(tmp_path, 0, 0)
    (tmp_path / KEY).rename(tmp_path / "moved")
    (tmp_path / KEY).symlink_to("moved")
    assert kept.get(KEY) is None
    (tmp_path / KEY).unlink()
    os.mkfifo(tmp_path / KEY)
    assert kept.get(KEY) is None
    (tmp_path / "moved").replace(tmp_path / KEY)
    assert kept.get(KEY) == b"data"


AS_NOBODY = """
import ctypes, os, sys
from gpt.base.cache import Cache
if sys.argv[1] == "unmapped":
    assert not ctypes.CDLL(None, use_errno=True).unshare(0x10000000), "unshare"
else:
    os.setgid(65534), os.setuid(65534)
from pathlib import Path
kept = Cache(Path(sys.argv[2]))
kept.put(sys.argv[3], b"data")
print(os.geteuid(), kept.get(sys.argv[3]))
"""


@pytest.mark.parametrize("how", ["unmapped", "mapped"])
def test_cache_requires_user_ids(how, tmp_path):
    """In a user namespace without a mapping, files of all users, including the caller, belong to 65534."""
    if os.geteuid():
        pytest.skip("only root becomes another user")
    folder = Path(tempfile.mkdtemp(prefix="gpt-test."))  # the other user may have no access to tmp_path
    try:
        os.chown(folder, 65534, 65534)
        command = [sys.executable, "-c", AS_NOBODY, how, folder / "gpt" / "asm", KEY]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(folder)
    if "unshare" in done.stderr:
        pytest.skip("no user namespaces here")
    assert (done.returncode, done.stdout) == (0, f"65534 {None if how == 'unmapped' else b'data'}\n"), done.stderr
    assert ("belongs to user 65534, who may be anybody" in done.stderr) == (how == "unmapped")


def test_entries_moved_to_another_key_are_not_used(tmp_path):
    """If a restored backup has put the result under another name, the wrong kernel would run."""
    kept = Cache(tmp_path)
    kept.put(KEY, b"data")
    (tmp_path / KEY).rename(tmp_path / OTHER)
    assert kept.get(OTHER) is None
    assert not (tmp_path / OTHER).exists()  # and it's made again


@pytest.fixture
def precious(tmp_path):
    """Return a folder of the user's own files, older than anything and larger than any limit in these tests."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("notes.txt", "thesis.dat", "A" * 64, "0" * 63, ".gpt-x.part", "line\nfeed"):
        (home / name).write_bytes(bytes(5000))
        os.utime(home / name, (1e9, 1e9))
    return home


def shape_link(top, home):
    (top / "gpt").mkdir()
    (top / "gpt" / "asm").symlink_to(home)
    return "is a symbolic link"


def shape_link_above(top, home):
    (home / "asm").mkdir()
    (top / "gpt").symlink_to(home)
    return "is a symbolic link"


def shape_owner(top, home):
    (top / "gpt").mkdir()
    os.chown(top / "gpt", 2002, 2002)
    (top / "gpt" / "asm").symlink_to(home)
    return "belongs to user 2002"


def shape_owner_above(top, home):
    (top / "gpt").mkdir()
    home.rename(top / "gpt" / "asm")
    home.symlink_to(top / "gpt" / "asm")
    os.chown(top, 2002, 2002)
    return "belongs to user 2002"


def shape_group(top, home):
    (top / "gpt").mkdir()
    home.rename(top / "gpt" / "asm")
    home.symlink_to(top / "gpt" / "asm")
    (top / "gpt").chmod(0o770)
    return r"other users may write to it \(mode 770\)"


def shape_everybody_above(top, home):
    shape_group(top, home)
    (top / "gpt").chmod(0o700)
    top.chmod(0o777)
    return r"other users may write to it \(mode 777\)"


def shape_sticky_below(top, home):
    shape_group(top, home)
    (top / "gpt").chmod(0o1777)
    return r"other users may write to it \(mode 1777\)"


def shape_link_of_another(top, home):
    (top / "x").mkdir()
    (top / "real").mkdir(mode=0o700)
    top.chmod(0o1777)
    (top / "x").rmdir()
    (top / "x").symlink_to("real")
    return "is a symbolic link that another user may have made"


SHAPES = [value for name, value in sorted(globals().items()) if name.startswith("shape_")]


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_deleted_or_made_where_another_user_could_have_led_us(shape, tmp_path, precious, capfd, monkeypatch):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    monkeypatch.setattr(cache, "_said", threading.Event())
    (top := tmp_path / "top").mkdir()
    fact = shape(top, precious)
    before = sorted(os.listdir(precious))
    kept = Cache(top / ("x/gpt" if "link_of_another" in shape.__name__ else "gpt") / "asm", 10_000)
    kept.put(KEY, bytes(1000))
    assert kept.get(KEY) is None
    assert sorted(os.listdir(precious)) == before
    said = capfd.readouterr().err
    assert re.fullmatch(
        rf"gpt: warning: {tmp_path}/top[a-z/]*: {fact}; no code is cached: set XDG_CACHE_HOME .*\n", said
    )


def test_names_that_we_never_give_stay_whatever_room_is_wanted(tmp_path, precious):
    """The folder is ours alone."""
    before = sorted(os.listdir(precious))
    kept = Cache(precious, 10_000)
    for number in range(30):
        kept.put(key_of([bytes([number])]), bytes(1000))
    left = sorted(os.listdir(precious))
    assert set(before) <= set(left)
    assert len(left) - len(before) < 10


@pytest.mark.parametrize(
    "kind", ["link", "hard link", "folder", "fifo", "socket", "huge", "of another user", "others write"]
)
def test_cache_entry_not_private_or_regular_is_ignored(kind, tmp_path):
    folder, path = tmp_path / "cache", tmp_path / "cache" / KEY
    kept = Cache(folder, 1 << 20)
    kept.put(KEY, b"data")
    (victim := tmp_path / "victim").write_bytes(path.read_bytes())
    match kind:
        case "link" | "folder" | "fifo" | "socket" | "hard link":
            path.unlink()
            make = {
                "link": lambda: path.symlink_to(victim),
                "hard link": lambda: os.link(victim, path),
                "folder": path.mkdir,
                "fifo": lambda: os.mkfifo(path),
                "socket": lambda: os.mknod(path, stat.S_IFSOCK | 0o600),
            }
            make[kind]()
        case "huge":
            os.truncate(path, 1 << 40)
        case "of another user":
            if os.geteuid():
                pytest.skip("only root makes files of other users")
            os.chown(path, 2002, 2002)
        case "others write":
            path.chmod(0o666)
    # The user may have made a hard link, as backup tools do.
    assert kept.get(KEY) == (b"data" if kind == "hard link" else None)
    kept.put(KEY, b"new")
    assert kept.get(KEY) == (None if kind == "folder" else b"new")
    assert victim.read_bytes().endswith(b"data")


@pytest.mark.parametrize("where", ["/absolute", "relative"])
def test_a_home_on_a_link_of_ones_own_is_fine(where, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "home").symlink_to(tmp_path / "data" if where == "/absolute" else "../data/../data")
    kept = Cache(tmp_path / "links" / "home" / "gpt" / "asm")
    kept.put(KEY, b"data")
    assert kept.get(KEY) == b"data"
    assert (tmp_path / "data" / "gpt" / "asm" / KEY).exists()


def test_a_home_on_a_link_to_where_others_write_is_not(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    (tmp_path / "home").symlink_to("data")
    kept = Cache(tmp_path / "home" / "gpt" / "asm")
    kept.put(KEY, b"data")
    assert kept.get(KEY) is None
    assert not list((tmp_path / "data").iterdir())


def test_a_folder_of_its_own_in_one_with_the_sticky_bit_is_fine(tmp_path):
    """An example is XDG_CACHE_HOME=/tmp."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    kept = Cache(tmp_path / "shared" / "gpt" / "asm")
    kept.put(KEY, b"data")
    assert kept.get(KEY) == b"data"


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    kept = Cache(tmp_path / "a" / "gpt" / "asm")
    kept.put(KEY, b"data")
    assert kept.get(KEY) is None


def test_read_only_file_system_is_read(tmp_path):
    kept = Cache(tmp_path / "gpt" / "asm")
    kept.put(KEY, b"data")
    code = f"""
import subprocess, sys
subprocess.run(["mount", "--bind", "{tmp_path}", "{tmp_path}"], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", "{tmp_path}"], check=True)
from pathlib import Path
from gpt.base.cache import Cache
kept = Cache(Path("{tmp_path}/gpt/asm"))
assert kept.get("{KEY}") == b"data"
kept.put("{OTHER}", b"other")
assert kept.get("{OTHER}") is None
assert Cache(Path("{tmp_path}/new/asm")).get("{KEY}") is None
"""
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if os.geteuid() or tried.returncode:
        pytest.skip("needs root and mount namespaces")
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
