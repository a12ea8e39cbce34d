"""Histograms in shared memory: if a launch leaves space, values are counted there, and the results are the same."""

import os
import sys
from collections import Counter

import pytest

from gpt.probe.ptx.weave import weave
from gpt.probe.read.load import load_probes
from gpt.stream.wire import read_records
from tests.runtime import ends, hooked, probing
from tests.stream.totals_reader import read_maps
from tests.tiers import first

SHAPES = [(1, 1, 0), (6, 70, 0), (6, 70, 3), (2, 1000, 7), (3, 33, 2)]
FILE = """
[map.first]
type = "histogram"
data = {value = "u32"}

[map.second]
type = "histogram"
data = {value = "u64"}
low = 100
high = 1000
step = 9

[probe.begin]
position = "kernel"
before = '''.reg .u32 %value;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
SAVE [first] {%value};'''
after = '''.reg .u32 %value;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
SAVE [second] {%value};
SAVE [first] {%value};'''
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("room"), ends.CLIENT)


def run(folder, program, how, text, probes=()):
    (folder / "h.toml").write_text(FILE)  # for a pipeline that names it
    probes = probes or ("-p", probing.probe_file("h.toml", FILE))
    (folder / "k.ptx").write_text(text)
    words = [str(number) for shape in SHAPES for number in shape]
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    done = hooked.run(
        folder / "t.mp", program, folder / "k.ptx", how, *words, options=("-f", *probes), env=env, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    with open(folder / "t.mp", "rb") as file:
        rooms = [record.get("room") for record in read_records(file, "t.mp") if record["kind"] == "probed"]
    return rooms, read_maps(folder / "t.mp")


def check(found, repeats):
    """The bins of each launch."""
    for number, (blocks, threads, _) in enumerate(shape for shape in SHAPES for _ in range(repeats)):
        values = [1000 * block + thread for block in range(blocks) for thread in range(threads)]
        first = Counter(value.bit_length() for value in values)
        second = Counter(max(0, min((value - 100) // 9 + 1, 101)) if value >= 100 else 0 for value in values)
        launch = {name: sorted(launches.items())[number][1] for name, launches in found.items()}
        assert {low: count for low, _, count in launch["first"]} == {
            1 << bits - 1 if bits else 0: 2 * count for bits, count in first.items()
        }
        assert {low: count for low, _, count in launch["second"]} == {
            100 + 9 * (place - 1) if place else 0: count for place, count in second.items()
        }


@pytest.mark.parametrize("how", ["default", "graph"])
def test_where_there_is_room(tmp_path, program, how):
    rooms, found = run(tmp_path, program, how, ends.PTX.read_text())
    assert set(rooms) == {8 + 136 + 408}
    check(found, 2 if how == "graph" else 1)


SOON = """
import sys
from gpt.probe.lower import histogram
from gpt.stages.ptx_probe import main
histogram.PERIOD = int(sys.argv.pop())
sys.exit(main())
"""


@pytest.mark.parametrize("period", first(4, 1))
def test_bins_are_emptied_before_they_overflow(tmp_path, program, period):
    """Lanes empty the bins after each count, or after every fourth."""
    (tmp_path / "soon.py").write_text(SOON)
    line = f"gpt-extract --ptx --payload | {sys.executable} soon.py -p h.toml {period} | gpt-asm --arch $GPT_ARCH"
    rooms, found = run(tmp_path, program, "default", ends.PTX.read_text(), ("--jit", line))
    assert set(rooms) == {8 + 136 + 408}
    check(found, 1)


FORMS = """
[map.all]
type = "histogram"
data = {value = "u32"}

[probe.stores]
position = "st.global"
before = '''.reg .u32 %value;
mad.lo.u32 %value, %ctaid.x, %ntid.x, %tid.x;
SAVE [all] {%value};'''
"""


@pytest.mark.parametrize("form", ["launches", "graph"])
def test_every_form_of_a_launch_gets_room(tmp_path, form):
    source = probing.FORMS if form == "launches" else probing.CLIENT + UPDATE
    trace = probing.good(tmp_path, probing.build(tmp_path, source), "-p", probing.probe_file("h.toml", FORMS))
    assert not trace.of("unprobed")
    assert [record.get("room") for record in trace.of("probed")] == ROOMS[form]
    bits = Counter(value.bit_length() for value in range(probing.COUNT))
    for bins in read_maps(tmp_path / "t.mp")["all"].values():
        assert {low: count for low, _, count in bins} == {1 << n - 1 if n else 0: count for n, count in bits.items()}


# A node with dynamic shared memory, then with more, and then with so much that room for a histogram would reduce the
# number of blocks.
UPDATE = r"""
int main(int argc, char **argv) {
    void *graph, *exec, *stream, *node, *params[] = {&items, &added, &count};
    setup(argv[1]);
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuGraphCreate)(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS of = {.func = function, .gridDimX = 6, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 70,
                                  .blockDimY = 1, .blockDimZ = 1, .sharedMemBytes = 100, .kernelParams = params};
    OK(D(cuGraphAddKernelNode_v2)(&node, graph, NULL, (size_t)0, &of));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    for (int i = 0; i < 3; i++) {
        OK(D(cuGraphLaunch)(exec, stream));
        OK(D(cuStreamSynchronize)(stream));
        expect(3);
        of.sharedMemBytes = i ? 49000 : 2000;
        OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, node, &of));
    }
    check();
    return 0;
}
"""
ROOMS = {"launches": [8 + 136] * 5, "graph": [1024 - 100 + 144, 2048 - 2000 + 144, None]}
# The kernel fills all of its dynamic shared memory, and later counts what it finds there.
FILLS = """.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 8 .b8 own[];
.visible .entry fills(.param .u64 found, .param .u32 size)
{
    .reg .u32 %r<8>;
    .reg .u64 %d<3>;
    .reg .pred %p;
    ld.param.u64 %d1, [found];
    ld.param.u32 %r1, [size];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, own;
FILL:
    setp.ge.u32 %p, %r2, %r1;
    @%p bra FILLED;
    add.u32 %r4, %r3, %r2;
    st.shared.u8 [%r4], %r2;
    add.u32 %r2, %r2, 64;
    bra FILL;
FILLED:
    bar.sync 0;
    mov.u32 %r2, %tid.x;
FIND:
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    add.u32 %r4, %r3, %r2;
    ld.shared.u8 %r5, [%r4];
    and.b32 %r6, %r2, 255;
    setp.eq.u32 %p, %r5, %r6;
    @%p red.global.add.u32 [%d1], 1;
    add.u32 %r2, %r2, 64;
    bra FIND;
}
"""
STORES = """
[map.all]
type = "histogram"
data = {value = "u32"}

[probe.stores]
position = "st.shared"
after = '''.reg .u32 %value;
mov.u32 %value, %tid.x;
SAVE [all] {%value};'''
"""
MAIN = r"""
int main(int argc, char **argv) {
    static char text[1 << 14];
    void *module, *function;
    CUdeviceptr found;
    begin();
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&function, module, "fills"));
    OK(D(cuMemAlloc_v2)(&found, (size_t)4));
    for (int i = 2; i < argc; i++) {
        unsigned size = (unsigned)atoi(argv[i]), sum = 0;
        void *params[] = {&found, &size};
        OK(D(cuMemcpyHtoD_v2)(found, &sum, (size_t)4));
        OK(cuLaunchKernel(function, 3, 1, 1, 64, 1, 1, size, NULL, params, NULL));
        OK(D(cuMemcpyDtoH_v2)(&sum, found, (size_t)4));
        assert(sum == 3 * size);
    }
    return 0;
}
"""


@pytest.mark.full
def test_shared_memory_of_the_program_is_unchanged(tmp_path):
    (tmp_path / "h.toml").write_text(STORES)
    (tmp_path / "k.ptx").write_text(FILLS)
    sizes = (0, 1, 1000, 1024, 1025, 5000, 49000)
    words = (tmp_path / "k.ptx", *map(str, sizes))
    trace = probing.good(tmp_path, probing.build(tmp_path, MAIN), "-p", tmp_path / "h.toml", arguments=words)
    padded = [-(-size // 1024) * 1024 + 144 - size for size in sizes]
    assert [record.get("room") for record in trace.of("probed")] == [*padded[:-1], None]
    found = [bins for _, bins in sorted(read_maps(tmp_path / "t.mp")["all"].items())]
    assert [sum(count for _, _, count in bins) for bins in found] == [3 * size for size in sizes]


FULL = ".shared .align 4 .b8 taken[48700];\n    .reg .pred %p<4>;"
READS = ".reg .u32 %size;\n    mov.u32 %size, %dynamic_smem_size;\n    .reg .pred %p<4>;"


@pytest.mark.parametrize("change", first(FULL, READS), ids=["full", "reads its size"])
@pytest.mark.full
def test_programs_without_room(tmp_path, program, change):
    rooms, found = run(tmp_path, program, "default", ends.PTX.read_text().replace(".reg .pred %p<4>;", change))
    assert set(rooms) == {None}
    check(found, 1)


def test_functions_that_save_or_end_threads_get_no_room(tmp_path):
    (tmp_path / "h.toml").write_text(FILE)
    text = ends.PTX.read_text()
    leaves = ".func leaves()\n{\n    exit;\n}\n"
    calls = text.replace("PLAIN:\n", "PLAIN:\n    call leaves;\n").replace(
        ".visible .entry", f"{leaves}.visible .entry"
    )
    files = [load_probes(tmp_path / "h.toml")]
    assert weave(text.encode(), "ends", files).room == 552
    woven = weave(calls.encode(), "ends", files)
    assert woven.room == 0 and b"atom.shared" not in woven.data
