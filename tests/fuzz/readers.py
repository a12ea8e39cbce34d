"""Readers of files, PTX and probe files: libraries, which may raise only GptError, and gpt-extract."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError
from gpt.stream import records, wire
from tests.fuzz import words
from tests.fuzz.engine import ROOT, Sample, Target, Wrong
from tests.fuzz.mutate import text_mutator
from tests.fuzz.stages import call, stage_main


def refuses(read: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    """Return a function that reads bytes, and may only raise a GptError that has a fact and a location."""

    def run(data: bytes) -> None:
        try:
            read(data)
        except GptError as error:
            if not error.fact or error.status not in (1, 3):
                raise Wrong(f"status {error.status}: {error}") from error

    return run


def samples(*names: str) -> Callable[[Sample], list[bytes]]:
    return lambda sample: [sample(name).read_bytes() for name in names]


# Files


def read_file(data: bytes) -> None:
    """Read a file as gpt-extract does."""
    from gpt.extract.contents import Opener
    from gpt.extract.unfound import iter_unfound
    from gpt.formats import cubin, nvinfo
    from gpt.formats.image import find_image
    from gpt.formats.source import Source

    image = find_image(Source("file", data))
    if image is None:
        return
    opener = Opener(image.source)
    found = list(image.iter_elements(scan=zlib.crc32(data) % 2 == 0))
    for _ in iter_unfound(image, found):
        pass
    image.find_foreign()
    for placed in found:
        item = opener.open(placed, keep=True)
        if item.data is not None and placed.element.type == "cubin":
            cubin.find_ptx(item.data)
            try:
                nvinfo.read_needs(item.data)
            except GptError:
                pass  # names of sections are read only here


def read_frames(data: bytes) -> None:
    from gpt.formats import frames
    from gpt.formats.source import Source

    source = Source("file", data)
    if frame := frames.find_frame(source, 0):
        frames.parse_cubin(source, 0, frame)


def frame_seeds(sample: Sample) -> list[bytes]:
    import zstandard

    code = sample("cubin").read_bytes()
    makers = [zstandard.ZstdCompressor(level=level, write_checksum=sums) for level, sums in ((1, True), (19, False))]
    return [maker.compress(code) for maker in makers]


def pack_again(data: bytes) -> None:
    """Read a cubin from any ptxas as gpt-asm does."""
    from gpt.formats import fatbinwrite, nvinfo

    nvinfo.read_needs(data)
    fatbinwrite.pack_fatbin([fatbinwrite.Payload("cubin", "sm_100a", data)], "zstd")


def find_sites(data: bytes) -> None:
    """Read the kernels of a cubin as machine code, whatever their content."""
    from gpt.formats.cubin_edit import CubinEditor
    from gpt.sass.kernels import read_kernel
    from gpt.sass.sites import iter_sites
    from gpt.sass.tables import table_of

    cubin = CubinEditor(data)
    for name in cubin.kernels:
        kernel = read_kernel(cubin, name.decode("utf-8", "surrogateescape"), table_of("sm_90"))
        for _, _, free, _ in iter_sites(kernel):
            if free and free.R >> kernel.registers:
                raise Wrong("a register is free that the kernel doesn't have")


def edit_cubin(data: bytes) -> None:
    """Add code, registers and a parameter to each kernel, unless that's rejected with a reason; a second reader must
    accept the result.

    Without edits, the cubin must not change.
    """
    from gpt.formats import code_moves, cubin
    from gpt.formats.cubin_edit import CubinEditor
    from gpt.formats.kernel_edit import NOP, KernelEditor
    from gpt.formats.kernel_params import add_parameter

    editor = CubinEditor(data)
    if editor.build() != data:
        raise Wrong("the cubin has changed without an edit")
    names = [name.decode("utf-8", "surrogateescape") for name in list(editor.kernels)[:20]]
    edits: list[Callable[[KernelEditor], object]] = [
        lambda kernel: kernel.insert(0, NOP), lambda kernel: kernel.append(NOP * 3), add_parameter,
        lambda kernel: kernel.set_registers(kernel.registers + 2),
        lambda kernel: kernel.move({0: 16}),
        lambda kernel: code_moves.follow_symbols(editor, kernel.section, lambda offset: offset),
    ]  # fmt: skip
    for number, name in enumerate(names):
        for edit in edits[number % 2 :]:
            try:
                edit(KernelEditor(editor, name))
            except GptError:
                pass  # the rest goes on
    built = editor.build()
    if len(built) > 2 * len(data) + 4096 * len(names) or len(cubin.section_headers(built)) != len(editor.sections) * 64:
        raise Wrong("what's built is not the cubin")


def wheel_seeds(sample: Sample) -> list[bytes]:
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as wheel:
            wheel.writestr("x/libsmall.so", sample("small").read_bytes())
            wheel.writestr("x/\u00e4.txt", "text" * 100)
            wheel.writestr("x-1.dist-info/RECORD", "x/libsmall.so,sha256=abc,1\nx-1.dist-info/RECORD,,\n")
        made.append(out.getvalue())
    return made


def zip_seeds(sample: Sample) -> list[bytes]:
    """Return small archives, in which most bytes are tables."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.comment = b"comment"
        for name in ("x/", "x/a.so", "./\u00e4.txt", "x-1.dist-info/RECORD"):
            info = zipfile.ZipInfo(name)
            info.extra, info.comment = b"\x55\x54\1\0\3\1\0\x08\0" + bytes(8), b"c"
            wheel.writestr(info, b"" if name.endswith("/") else b"x/a.so,md5=abc,1\n" * 9)
    return [out.getvalue()]


def rebuild_zip(data: bytes) -> None:
    """Read each member, and replace one. All members must be there in the same order, the replaced one with its new
    content.
    """
    from gpt.formats.source import Source
    from gpt.formats.zips import Zip
    from gpt.patch.wheel import repack

    wheel = Zip(Source("file.whl", data))
    for info in wheel.members:
        try:
            with wheel.spooled(info):
                pass
        except GptError:
            pass  # the rest goes on
    new = Path("new")
    new.write_bytes(b"new" * 99)
    for name in list(wheel.by_name)[:2]:
        out = io.BytesIO()
        repack(wheel, {name: new}, out)
        made = Zip(Source("out.whl", out.getvalue()))
        if [i.filename for i in made.all] != [i.filename for i in wheel.all]:
            raise Wrong("the members are others")
        if made.read(made.by_name[name], 1 << 20) != new.read_bytes():
            raise Wrong(f"'{name}' is not what it should be")


def extract_file(*args: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        Path("file.whl").write_bytes(data)
        call(stage_main("extract"), "gpt-extract", "-j1", *args, "file.whl")

    return run


def printed_seeds(sample: Sample) -> list[bytes]:
    from tests.attach import printed

    lines = [
        *printed.BEGIN, printed.launch(0x10, 5_000_002_000), *printed.name("_Z3onePf", 5_000_003_000),
        printed.call("cuModuleGetFunction", 5_000_003_000, object=0x20), "Lost 3 events",
        printed.call("nvidia_unlocked_ioctl", 5_000_003_500, kind="kernel", request=0xC00846D6), "beat 5500000000",
        "exit 7 6000000000", *printed.END, "@call1[7, 8, 1]: (5000006000, 0)",
    ]  # fmt: skip
    return [printed.as_text(lines).encode(), printed.as_json(lines).encode()]


def convert_printed(data: bytes) -> None:
    """Make a trace from bpftrace's output. The trace must be readable."""
    Path("printed").write_bytes(data)
    done = call(stage_main("attach"), "gpt-attach", "-q", "-f", "-o", "trace.mp", "printed")
    if not done.status:
        with open("trace.mp", "rb") as trace:
            for _ in wire.read_records(trace, "trace.mp"):
                pass


# PTX


def read_ptx(data: bytes) -> None:
    from gpt.formats.ptxtext import find_head
    from gpt.ptx.names import parse_names

    find_head(data[:4096])
    parse_names(data)


def scan_ptx(data: bytes) -> None:
    """Run the scanner, and parse the instructions that it finds as the weaver does."""
    from gpt.ptx import quick, scan

    module = scan.scan_module(data, "module")
    for function in module.functions[:20]:
        for statement in module.statements(function)[:100]:
            if statement.kind == "instruction":
                try:
                    quick.parse_instruction(module.source(statement))
                except GptError:
                    pass  # the rest goes on


def parse_ptx(data: bytes) -> None:
    from gpt.ptx import parse

    parse.parse_module(data, "module")


def outline_ptx(data: bytes) -> None:
    """Outline PTX as for a program that loads it on the simulated device; the record must be readable."""
    from gpt.asm.host.outline import read_outline

    outline = records.make("outline", id=1, **read_outline(data, "m"))
    if fault := records.check(outline):
        raise Wrong(fault)
    wire.pack(outline)


def ptx_seeds(sample: Sample) -> list[bytes]:
    text = sample("ptx").read_bytes()
    return [text, (ROOT / "tests/ptx/shapes.ptx").read_bytes(), text.replace(b"\n", b"\r\n")]


def weave_ptx(data: bytes) -> None:
    probe = sorted(path.stem for path in (ROOT / "probes").glob("*.toml"))[zlib.crc32(data) % 13]
    module = records.make("ptx", id=1, module="m", arch="sm_90", kernels=[], data=data)
    first, last = wire.header("test", []), records.make("end", records=1, status=0)
    call(stage_main("ptx_probe"), "gpt-ptx-probe", "-p", probe, data=b"".join(map(wire.pack, (first, module, last))))


# Probe files


def probe_seeds(suffix: str) -> Callable[[Sample], list[bytes]]:
    def seeds(sample: Sample) -> list[bytes]:
        if suffix == ".toml":
            return [path.read_bytes() for path in sorted((ROOT / "probes").glob("*.toml"))]
        return [PYTHON]

    return seeds


PYTHON = b"""
from gpt import probe
@probe.Map(level="warp", type="array", size=16, cap=1)
class sched:
    start: probe.u64
    elapsed: probe.u32
    smid: probe.u32
start: probe.u64 = 0
elapsed: probe.u64 = 0
@probe(pos="kernel", level="warp", before=True)
def begin():
    start = probe.clock()
@probe(pos="kernel", level="warp")
def end():
    elapsed = probe.clock() - start
    sched.save(start, elapsed, probe.smid())
"""


def load_probe(suffix: str) -> Callable[[bytes], Any]:
    def run(data: bytes) -> None:
        from gpt.probe.read.load import load_probes
        from gpt.probe.read.show import to_toml
        from gpt.probe.read.toml import parse_toml
        from gpt.probe.verify import verify

        path = Path(f"probe{suffix}")
        path.write_bytes(data)
        file = load_probes(path)
        shown = to_toml(file)
        assert to_toml(parse_toml(shown, str(path))) == shown
        verify(file)

    return run


ptx, probe = text_mutator(*words.PTX), text_mutator(*words.PROBE)
READERS = [
    Target("elf", samples("zstd", "relocatable", "relr", "scattered"), refuses(read_file), quick=200),
    Target("fatbin", samples("fatbin"), refuses(read_file), quick=200),
    Target("cubin", samples("cubin"), refuses(read_file), quick=400),
    Target("nvinfo", samples("cubin"), refuses(pack_again), quick=200),
    Target("sass", samples("cubin"), refuses(find_sites), quick=100),
    Target("cubin-edit", samples("cubin"), refuses(edit_cubin), quick=200),
    Target("archive", samples("archive", "object_"), refuses(read_file), quick=100),
    Target("frames", frame_seeds, refuses(read_frames), quick=300),
    Target("wheel", wheel_seeds, extract_file("-r"), quick=20),
    Target("zip", zip_seeds, refuses(rebuild_zip), quick=300),
    Target("file", samples("small", "cubin", "ptx"), extract_file("--scan"), quick=40),
    Target("bpftrace", printed_seeds, convert_printed, text_mutator(*words.BPFTRACE, *words.JSON), quick=40),
    Target("ptx-text", ptx_seeds, refuses(read_ptx), ptx, quick=300),
    Target("ptx-scan", ptx_seeds, refuses(scan_ptx), ptx, quick=100),
    Target("ptx-outline", ptx_seeds, refuses(outline_ptx), ptx, quick=60),
    Target("ptx-grammar", ptx_seeds, refuses(parse_ptx), ptx, quick=40),
    Target("ptx-weave", ptx_seeds, weave_ptx, ptx, quick=40),
    Target("probe-toml", probe_seeds(".toml"), refuses(load_probe(".toml")), probe, quick=100),
    Target("probe-python", probe_seeds(".py"), refuses(load_probe(".py")), probe, quick=200),
]  # fmt: skip
