"""Draw the chart in docs/measured.md: the contents of files before and after, from a benchmark run.

python -m tests.bench.plot [RESULTS.json [PICTURE.png]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs/figures/bench/slim.json"
HOST, KEPT, GONE = "#4a5568", "#76b900", "#d9e8bf"


def plot(results: Path, picture: Path) -> None:
    """Draw a bar per library: host code and data, GPU code that's kept, GPU code that's removed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    libraries = json.loads(results.read_text())["libraries"]
    figure, axes = pyplot.subplots(figsize=(8, 0.55 * len(libraries) + 1.3), dpi=150)
    for place, row in enumerate(libraries.values()):
        compact = row["compact"]
        host = compact["size_before"] - compact["gpu_before"]
        kept, gone = compact["gpu_after"], compact["gpu_before"] - compact["gpu_after"]
        left = 0.0
        for size, color in ((host, HOST), (kept, KEPT), (gone, GONE)):
            axes.barh(place, size / 1e6, left=left, color=color, height=0.62)
            left += size / 1e6
        text = f"{compact['size_before'] / 1e6:.0f} MB to {compact['size_after'] / 1e6:.0f} MB"
        axes.text(left + 5, place, text, va="center", fontsize=9)
    axes.set_yticks(range(len(libraries)), list(libraries))
    axes.invert_yaxis()
    axes.set_xlabel("MB")
    axes.set_xlim(0, 1.28 * max(row["compact"]["size_before"] for row in libraries.values()) / 1e6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    labels = ("host code and data", "GPU code that is used on sm_90", "GPU code that goes")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in (HOST, KEPT, GONE)]
    axes.legend(handles, labels, frameon=False, ncol=3, loc="lower center", bbox_to_anchor=(0.42, 1.0), fontsize=9)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Software": None})


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    plot(source, Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png"))
