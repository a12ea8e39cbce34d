"""PTX from libraries on PyPI: every module is scanned without a gap, printed token for token, and can be pruned.

The libraries come from tests/packages.py; the tests are skipped without them.
"""

import pytest

from gpt.ptx import parse, scan
from gpt.ptx.names import parse_names
from gpt.ptx.prune import prune
from tests.packages import PACKAGES, fetch
from tests.ptx.tokens import assert_same_cuts, assert_whole_bodies, tokens
from tests.stages.tools import extract

PARSED = 3 << 20  # bytes to parse in each library, smallest modules first
KERNELS = 3  # kernels per module to prune it to


@pytest.mark.full
@pytest.mark.parametrize("name", ["bitsandbytes", "curand", "xgboost"])
def test_every_module(name):
    records = sorted(extract("--ptx", fetch(PACKAGES[name])).kind("ptx"), key=lambda record: len(record["data"]))
    assert records
    room = PARSED
    for record in records:
        data = record["data"]
        module = scan.scan_module(data, record["module"])
        assert [item.name for item in module.entries] == record["kernels"]
        functions = dict.fromkeys(item.name for item in module.items if item.kind == "func")
        assert [symbol["name"] for symbol in parse_names(data).functions] == list(functions)
        assert_whole_bodies(module)
        for entry in module.entries[:KERNELS]:
            assert entry.name in [item.name for item in scan.scan_module(prune(module, [entry.name])).entries]
        room -= len(data)
        if room > 0:
            assert_same_cuts(module)
            assert tokens(str(parse.parse_module(data, record["module"]))) == tokens(module.text)
