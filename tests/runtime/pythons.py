"""The Pythons on this machine."""

import os
from pathlib import Path


def find_pythons():
    """Yield one Python of each version on PATH or in pyenv; they have no GPT."""
    places = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep) if ".venv" not in folder]
    places += (Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions").glob("*/bin")
    for minor in range(8, 16):
        files = [place / f"python3.{minor}" for place in places if place.name != "shims"]
        yield next((str(file) for file in files if file.exists()), f"python3.{minor}")
