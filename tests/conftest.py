"""Shared by all tests: the executables come first on PATH, and files are built once for all workers."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests import cuda, loaded, tiers
from tests.formats.samples import SAMPLES

# Put the executables of the environment that runs the tests before the system's. Small programs that ask a server to
# fork come first; the fixture `cold` turns them off. Slow tests kill processes and watch them, so most get real ones.
places = [Path(sys.executable).parent]
if not tiers.FULL:
    places.insert(0, loaded.install() / "bin")
    loaded.runtime = loaded.install() / "gpt" / "_runtime"
    os.environ[loaded.VARIABLE] = str(loaded.listen())
os.environ["PATH"] = os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)])

# Most GPU code in the tests is made up: the simulated device accepts its launches and runs nothing.
os.environ["GPT_SIM_RUN"] = "none"

# Examples have no time limit: on a busy machine, any of them may take long.
SLOW = hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large
hypothesis.settings.register_profile("gpt", max_examples=tiers.examples(200), deadline=None, suppress_health_check=SLOW)
hypothesis.settings.load_profile("gpt")

# A shell or nohup may have started us with these signals ignored, and all processes that tests send signals to would
# inherit that.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


# 12,000 collected tests are 360,000 objects that stay, and garbage collections walk through all of them.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    """Keep garbage collections from walking through the tests."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that `make test-part` doesn't run for this commit."""
    if tiers.PART:
        chosen = [item for item in items if tiers.is_in_part(item)]
        config.hook.pytest_deselected(items=[*{*items} - {*chosen}])
        items[:] = chosen


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder shared by all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Let all workers and later sessions share the output of compilers: in CI, `make test-part` runs
    after `make test`.
    """
    cuda.compiled = tiers.ROOT / "build" / "compiled"
    cuda.compiled.mkdir(parents=True, exist_ok=True)
    cuda.forget()


@pytest.fixture(autouse=tiers.FULL)
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server fork the executables that slow tests in tiers.FORKED start, as it does in `make test`."""
    path = request.path.relative_to(tiers.ROOT / "tests")
    if "cold" not in request.fixturenames and any(path.match(name) for name in tiers.FORKED):
        folder = loaded.install()
        monkeypatch.setattr(loaded, "runtime", folder / "gpt" / "_runtime")
        monkeypatch.setenv(loaded.VARIABLE, str(loaded.listen()))
        monkeypatch.setenv("PATH", os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]))


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start executables as users do, and not ask the server."""
    monkeypatch.delenv(loaded.VARIABLE, raising=False)


@pytest.fixture(scope="session")
def sample(shared: Path) -> Callable[[str], Path]:
    """Return the named sample (tests/formats/samples.py), built by the first worker that asks. Don't change it."""

    def get(name: str) -> Path:
        folder = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / ".path"
            if not done.exists():
                folder.mkdir(exist_ok=True)
                done.write_text(str(SAMPLES[name](folder)))
            return Path(done.read_text())

    return get
