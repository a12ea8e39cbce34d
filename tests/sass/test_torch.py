"""The table explains every word of PyTorch's kernels for sm_90. These are open source, and weren't made for our tests.

`xzcat tests/sass/torch_kernels.txt.xz` prints the names of these kernels, each as often as it occurs: 21,742 in all,
21,132 of them distinct. They're from the wheel for CPython 3.12; other wheels have other hashes in the names of
anonymous namespaces. Runs only with GPT_TEST_LARGE=1, because the download is large.
"""

import lzma
import os
import struct
import subprocess
from pathlib import Path

import msgpack
import pytest

from gpt.sass.tables import table_of
from gpt.sass.words import words_array
from tests.packages import LARGE, fetch
from tests.sass.explain import Explained, explain
from tests.tiers import ROOT

NAMES = Path(__file__).with_name("torch_kernels.txt.xz")
WORDS = 37_783_848


def iter_sections(cubin):
    (shoff,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, shoff + 64 * index) for index in range(count)]
    for name, _, _, _, offset, size, *_ in headers:
        if cubin.startswith(b".text.", headers[names][4] + name):
            start = headers[names][4] + name + len(".text.")
            yield cubin[start : cubin.index(b"\0", start)].decode(), cubin[offset : offset + size]


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("GPT_TEST_LARGE"), reason="850 MB: GPT_TEST_LARGE=1")
def test_every_word_of_pytorch_is_explained():
    library = fetch(LARGE["torch"])
    command = [ROOT / "bin" / "gpt-extract", "--type", "cubin", "--arch", "sm_90,sm_90a", "--payload", library]
    found = Explained()
    kernels = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for record in msgpack.Unpacker(process.stdout, max_buffer_size=1 << 30):
            for name, section in iter_sections(record["data"]) if "data" in record else ():
                explain(table_of("sm_90"), words_array(section), found)
                kernels.append(name)
    assert process.returncode == 0
    assert sorted(kernels) == lzma.decompress(NAMES.read_bytes()).decode().splitlines()
    assert found.words == WORDS
    assert not found.unknown and not found.inexact
    assert len(found.opcodes) == 253
