"""Show the timelines of docs/analyses.md in other viewers, using traces from pictures.py.

    python tests/lab/viewers.py FOLDER [docs/figures/analyses]

Needs Chromium, and the network on the first run (tests/packages.py), but no GPU. We ran it once, on the timelines in
docs/figures/analyses.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.pictures import BIN, COLORS  # noqa: E402
from tests.timeline import browser, viewers  # noqa: E402

HALF_A_TOKEN, STEPS = ("--time", "13.0,13.003"), ("--time", "13.177,13.243")
PICTURES: dict[str, tuple[str, str, tuple[str, ...], tuple[int, int]]] = {  # file -> (format, run, part of it, size)
    "timeline.png": ("html", "plain", HALF_A_TOKEN, (1400, 150)),
    "timeline_perfetto.png": ("perfetto", "plain", (), (1600, 640)),
    "timeline_chrome.png": ("chrome", "plain", HALF_A_TOKEN, (1600, 440)),
    "ranks.png": ("html", "ranks", STEPS, (1400, 760)),
    "ranks_perfetto.png": ("perfetto", "ranks", STEPS, (1600, 900)),
    "ranks_chrome.png": ("chrome", "ranks", STEPS, (1600, 760)),
}
ARROWS = """(() => {
    const view = %s.timelineView;
    view.trackView.viewport.selectedFlowEvents = new Set(view.model.flowEvents.map((one) => one.category));
    view.analysisEl_.style.height = "60px";
})()"""


def write(form: str, trace: Path, *options: str) -> bytes:
    """Write a timeline."""
    line = [BIN / "gpt-analyze", "timeline", "--format", form, *options, trace]
    return subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout


def pack(path: Path) -> None:
    """Make a picture small."""
    from PIL import Image

    Image.open(path).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def shoot(out: Path, made: Path, form: str, data: bytes, size: tuple[int, int]) -> None:
    """Take a screenshot of a timeline in its viewer."""
    match form:
        case "perfetto":
            with viewers.perfetto(data, made, size) as shown:
                shown.shoot(out)
        case "chrome":
            with viewers.chrome(data, made, size) as page:
                page.ask(ARROWS % viewers.CHROME)
                viewers.shoot(page, out)
        case _:
            made.mkdir()
            (made / "page.html").write_bytes(data)
            with browser.opened((made / "page.html").as_uri(), made / "browser", size=size) as page:
                page.shoot(out)


def main(folder: Path, out: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as made:
        for name, (form, run, options, size) in PICTURES.items():
            shoot(out / name, Path(made, name), form, write(form, folder / run / "t.mp", *options), size)
            pack(out / name)
            print(f"{name}: {(out / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [folder, *rest] if len(rest) < 2:
            main(Path(folder), Path(rest[0]) if rest else ROOT / "docs" / "figures" / "analyses")
        case _:
            sys.exit(__doc__)
