"""What was assembled is kept, whatever happens to the folder."""

import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.asm import cache
from gpt.asm.cache import Cache, default_folder, key_of

KEY, OTHER = key_of([b"a"]), key_of([b"b"])


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_keys_differ_where_parts_do(a, b):
    assert (key_of(a) == key_of(b)) == (a == b)


def test_what_is_put_is_there_for_others(tmp_path):
    Cache(tmp_path / "new" / "folder").put(KEY, b"data")
    assert Cache(tmp_path / "new" / "folder").get(KEY) == b"data"
    assert Cache(tmp_path / "new" / "folder").get(OTHER) is None
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [KEY]
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(
    "change", [lambda d: d[:-1], lambda d: b"", lambda d: d + b"x", lambda d: d[:40] + b"\0" + d[41:]]
)
def test_what_was_torn_or_altered_is_not_there_and_made_anew(tmp_path, change):
    Cache(tmp_path).put(KEY, b"data" * 10)
    path = tmp_path / KEY
    path.write_bytes(change(path.read_bytes()))
    assert Cache(tmp_path).get(KEY) is None
    Cache(tmp_path).put(KEY, b"anew")
    assert Cache(tmp_path).get(KEY) == b"anew"


def test_the_oldest_goes_first_and_use_makes_young(tmp_path):
    kept = Cache(tmp_path, 10_000)
    keys = [key_of([bytes([n])]) for n in range(30)]
    for n, key in enumerate(keys):
        kept.put(key, bytes(1000))
        for path in tmp_path.iterdir():  # a second passes
            stat = path.stat()
            os.utime(path, (stat.st_atime, stat.st_mtime - 1))
        assert kept.get(keys[0]) == bytes(1000), n
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert kept.get(keys[-1]) and not kept.get(keys[1])
    assert len(list(tmp_path.iterdir())) > 5


def test_what_is_too_large_is_not_kept(tmp_path):
    kept = Cache(tmp_path, 1000)
    kept.put(KEY, bytes(500))
    assert kept.get(KEY) is None


def test_what_somebody_left_unfinished_goes(tmp_path):
    old, new = tmp_path / f".{KEY}.1.1", tmp_path / f".{KEY}.2.2"
    old.write_bytes(bytes(500))
    new.write_bytes(bytes(500))
    os.utime(old, (0, time.time() - cache.STALE - 10))
    Cache(tmp_path, 900).put(KEY, bytes(50))
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("place", ["/dev/null/below", "/proc/nothing", "/dev/full", "file", "link"])
def test_a_folder_that_cannot_be_is_no_error(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "link")
    kept = Cache(tmp_path / place)
    kept.put(KEY, b"data")
    assert kept.get(KEY) is None
    assert Cache(None).get(KEY) is None
    Cache(None).put(KEY, b"data")


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """A limit on the size of files stands in for the disk: the write fails midway."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from gpt.asm.cache import Cache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "kept = Cache(Path(sys.argv[1])); kept.put('a' * 64, bytes(100000)); assert kept.get('a' * 64) is None\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert list(tmp_path.iterdir()) == []


def test_many_at_once_get_whole_results(tmp_path):
    """Processes write the same few keys in a folder that is too small, and read what is whole or not there."""
    code = """
import os, sys
from pathlib import Path
from gpt.asm.cache import Cache, key_of
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
    # Each process may go beyond the limit by what it does not know of the others.
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


def test_what_somebody_else_may_have_put_there_is_not_used(tmp_path):
    """It is code that will run."""
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
    (tmp_path / KEY).rename(tmp_path / OTHER)
    (tmp_path / KEY).symlink_to(tmp_path / OTHER)
    assert kept.get(KEY) is None
    (tmp_path / KEY).unlink()
    os.mkfifo(tmp_path / KEY)
    assert kept.get(KEY) is None
    assert kept.get(OTHER) == b"data"
