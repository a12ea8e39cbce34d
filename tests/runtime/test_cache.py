"""The caches of the hook and of the simulated device, from a user's point of view;
tests/test_cache.py tests the rules.
"""

import os
import shutil
from itertools import pairwise

import pytest

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, check_bytes
from tests.tiers import full

MAIN = CLIENT + "int main(int argc, char **argv) { setup(argv[1]); run(); check(); }"


def run(folder, cache, *options):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(cache)}
    done = hooked.run(folder / "t.mp", build(folder, MAIN), PTX, options=("-f", *options), env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr, hooked.Trace(folder / "t.mp")


@pytest.mark.parametrize("name", ["probed", full("sim")])
def test_a_folder_planted_by_another_user_is_reported_once_and_not_used(name, tmp_path):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    (home := tmp_path / "home").mkdir()
    for number in range(6):  # more data than the limit, and older than any result
        with open(home / f"thesis{number}.dat", "wb") as file:
            file.truncate(60_000_000)
        os.utime(home / f"thesis{number}.dat", (1e9, 1e9))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / "shared" / "gpt").mkdir()
    (tmp_path / "shared" / "gpt" / name).symlink_to(home)
    os.chown(tmp_path / "shared" / "gpt", 2002, 2002)
    said, trace = run(tmp_path, tmp_path / "shared", "-p", "gmem_bytes")
    assert len(said.splitlines()) == 1
    assert f"gpt-hook: warning: {tmp_path}/shared/gpt: belongs to user 2002; no code is cached: set XDG_" in said
    check_bytes(trace, 1)
    assert len(list(home.iterdir())) == 6


@pytest.mark.full
def test_answer_under_wrong_key_is_not_used(tmp_path):
    for probe in ("gmem_bytes", "block_sched"):
        run(tmp_path, tmp_path / probe, "-p", probe)
    (mine,) = (tmp_path / "gmem_bytes" / "gpt" / "probed").iterdir()
    (other,) = (tmp_path / "block_sched" / "gpt" / "probed").iterdir()
    shutil.copy(other, mine)
    said, trace = run(tmp_path, tmp_path / "gmem_bytes", "-p", "gmem_bytes")
    assert said == ""
    check_bytes(trace, 1)
    codes = sorted((tmp_path / "gmem_bytes" / "gpt" / "sim").iterdir(), key=lambda path: path.stat().st_size)
    for one, two in pairwise(codes):  # like a sync tool that mixes them up
        shutil.copy(two, one)
    said, trace = run(tmp_path, tmp_path / "gmem_bytes", "-p", "gmem_bytes")
    assert said == ""
    check_bytes(trace, 1)
