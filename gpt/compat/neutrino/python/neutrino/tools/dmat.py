"""Draws when a kernel accesses which pages of global memory. Prints the path of the picture.

    dmat.py RESULT.bin|FILE.dmat

`gpt-analyze dmat` draws the picture. From a `.bin` of the tool dmat, this script also makes a `.dmat` in the same
folder: u64 pages, u64 clocks, the pages (u64 each), then for each clock u64 clock, u64 n, n times u64 page, u32 count.
A page is its address.
"""

import sys
from pathlib import Path

import neutrino

sys.path.insert(0, str(Path(neutrino.__file__).resolve().parents[5]))  # the installation that this file belongs to
try:
    import matplotlib  # noqa: F401

    from gpt.compat.neutrino.traces.dmat import write_dmat
    from gpt.stages.analyze import main
except ImportError as error:
    sys.exit(f"dmat: error: {error}: the picture needs matplotlib and what GPT needs (--python names another Python)")

source = Path(sys.argv[1])
if source.suffix != ".dmat":
    write_dmat(source)
sys.argv = ["gpt-analyze", "dmat", "--plot", str(source.with_suffix(".png")), str(source)]
sys.exit(main())
