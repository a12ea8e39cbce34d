"""The timelines of docs/analyses.md in viewers of others: what gpt-analyze writes of a trace of pictures.py.

    python tests/gpu/viewers.py FOLDER [docs/figures/analyses]

Needs Chromium, and once the network (tests/packages.py); no GPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.pictures import BIN, COLORS  # noqa: E402
from tests.timeline import viewers  # noqa: E402

TIME = ("--time", "13.0,13.003")  # half a token
SIZES = {"perfetto": (1600, 640), "chrome": (1600, 440)}
ARROWS = """(() => {
    const view = %s.timelineView;
    view.trackView.viewport.selectedFlowEvents = new Set(view.model.flowEvents.map((one) => one.category));
    view.analysisEl_.style.height = "60px";
})()"""


def write(form: str, trace: Path, *options: str) -> bytes:
    """A timeline."""
    line = [BIN / "gpt-analyze", "timeline", "--format", form, *options, trace]
    return subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout


def pack(path: Path) -> None:
    """Makes a picture small."""
    from PIL import Image

    Image.open(path).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def main(folder: Path, out: Path) -> None:
    """Both pictures."""
    trace = folder / "plain" / "t.mp"
    with tempfile.TemporaryDirectory() as made:
        with viewers.perfetto(write("perfetto", trace), Path(made, "perfetto"), SIZES["perfetto"]) as shown:
            shown.shoot(out / "timeline_perfetto.png")
        with viewers.chrome(write("chrome", trace, *TIME), Path(made, "chrome"), SIZES["chrome"]) as page:
            page.ask(ARROWS % viewers.CHROME)
            viewers.shoot(page, out / "timeline_chrome.png")
    for name in ("timeline_perfetto.png", "timeline_chrome.png"):
        pack(out / name)
        print(f"{name}: {(out / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [folder, *rest] if len(rest) < 2:
            main(Path(folder), Path(rest[0]) if rest else ROOT / "docs" / "figures" / "analyses")
        case _:
            sys.exit(__doc__)
