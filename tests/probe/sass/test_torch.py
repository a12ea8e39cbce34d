"""Explaining kernels of PyTorch's wheel for sm_90: open source, and not made for our tests.

Runs only with GPT_TEST_LARGE=1, because the download is large.
"""

import os
import subprocess
from collections import Counter

import msgpack
import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.sass.explain import Wanted, explain_cubin
from tests.packages import LARGE, fetch
from tests.tiers import ROOT

SHARE = 12  # every twelfth cubin


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("GPT_TEST_LARGE"), reason="850 MB: GPT_TEST_LARGE=1")
def test_kernels_are_explained_and_none_is_left_alone():
    library = fetch(LARGE["torch"])
    command = [ROOT / "bin" / "gpt-extract", "--type", "cubin", "--arch", "sm_90,sm_90a", "--payload", library]
    kernels = cubins = 0
    places = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for record in msgpack.Unpacker(process.stdout, max_buffer_size=1 << 30):
            cubins += "data" in record
            if "data" not in record or cubins % SHARE:
                continue
            cubin = CubinEditor(record["data"])
            for row in explain_cubin(cubin, record["arch"], [raw.decode() for raw in cubin.kernels], Wanted()):
                if row.instruction is None:
                    assert row.code is None, row
                    kernels += 1
                else:
                    places[row.code] += 1
    assert process.returncode == 0
    assert kernels > 1000 and places.total() > 100 * kernels
    assert set(places) <= {None, "no_face", "never_runs"} and places["no_face"] < places.total() / 100
