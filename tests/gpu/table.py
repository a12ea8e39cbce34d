"""Print the tables of slimmed frameworks in docs/measured.md from raw figures: `python3 tests/gpu/table.py [FILE]`.

tests/test_gpu.py checks that docs/measured.md contains these tables as printed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
RESULTS = Path(__file__).parents[2] / "docs/figures/gpu/debloat-h200.json"
TITLES = {
    "mlp": "MLP, inference",
    "generate": "GPT-2-sized transformer, 20 tokens",
    "resnet": "ResNet-50, inference",
    "train": "MLP, training",
    "compile": "`torch.compile` and Triton",
    "jax": "JAX, training and a convolution",
}


def less(before: int, after: int, digits: int = 1) -> str:
    """Return the remaining size, and the reduction in percent."""
    left = f"{after / 1e6:,.0f}" if after >= 1e7 else f"{after / 1e6:.1f}"
    return f"{left} MB (-{100 * (1 - after / before):.{digits}f} %)"


def sizes(rows: Rows) -> Iterator[str]:
    """Yield a line for each workload whose sizes are all known."""
    yield "| workload | files | by elements | by kernels | GPU code | by elements | by kernels |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        if not row["same"] or not {"element", "drop"} <= row.get("sizes", {}).keys():
            continue
        element, drop = row["sizes"]["element"], row["sizes"]["drop"]
        files = [less(kind["size_before"], kind["size_after"]) for kind in (element, drop)]
        # what a kind does not see stays
        left = [kind["gpu_after"] + drop["gpu_before"] - kind["gpu_before"] for kind in (element, drop)]
        code = [less(drop["gpu_before"], after, 2) for after in left]
        before = [f"{drop[key] / 1e6:,.0f} MB" for key in ("size_before", "gpu_before")]
        yield f"| {' | '.join([TITLES[row['name']], before[0], *files, before[1], *code])} |"


def runs(rows: Rows) -> Iterator[str]:
    """Yield two lines for each workload that was run with dropped kernels: one with lazy loading, and one with eager
    loading.
    """
    yield "| | start-up, s | host memory, MB | mapped, MB | GPU memory, MB |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for row in rows:
        for loading, words in (("lazy", "lazily"), ("eager", "eagerly")):
            before, after = (row.get("runs", {}).get(f"{kind} {loading}") for kind in ("original", "drop"))
            if not row["same"] or not before or not after:
                continue
            figures = [f"{before['seconds']:.2f} to {after['seconds']:.2f}"]
            figures += [f"{before[key] / 1e6:,.0f} to {after[key] / 1e6:,.0f}" for key in ("resident", "mapped", "gpu")]
            yield f"| {' | '.join([TITLES[row['name']] + ', ' + words, *figures])} |"


def main() -> None:
    """Print both tables."""
    rows = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else RESULTS).read_text())
    print(*sizes(rows), "", *runs(rows), sep="\n")


if __name__ == "__main__":
    main()
