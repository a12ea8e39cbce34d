"""The interpreter agrees with the simulated device, which runs the same kernels from PTX."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

from gpt.sass.tables import table_of
from gpt.sass.words import Control, control_of, opcode_of, with_control, with_guard
from gpt.sass.words import Guard as WordGuard
from tests import cuda
from tests.runtime import hooked, probing
from tests.sass.interp.cases import CASES, KERNELS, differences
from tests.sass.interp.decode import Unimplemented, make
from tests.sass.interp.launch import Stuck
from tests.sass.interp.loader import load
from tests.sass.interp.memory import GlobalMemory, MemoryFault
from tests.sass.interp.run import interpret, make_launch
from tests.tiers import every, full

NUMBERS = {case.name: number for number, case in enumerate(CASES)}


def case_of(kernel):
    """Return the first case of a kernel."""
    return next(case for case in CASES if case.kernel == kernel)


@pytest.fixture(scope="module")
def cubins():
    """Compile the kernels."""
    try:
        files = sorted({case.file for case in CASES})
        return {name: load(cuda.nvrtc_compile((KERNELS / f"{name}.cu").read_text(), "sm_90")) for name in files}
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def simulate(tmp_path_factory):
    """Return a function that runs a case on the simulated device and returns the final `out`."""
    top = tmp_path_factory.mktemp("simulated")
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    env |= {"XDG_CACHE_HOME": probing.kept()}

    def run(case):
        folder = top / case.file
        if not folder.exists():
            folder.mkdir()
            source = (KERNELS / f"{case.file}.cu").read_text()
            (folder / f"{case.file}.ptx").write_bytes(cuda.nvrtc_compile(source, "compute_90"))
        command = [sys.executable, "-m", "tests.sass.interp.simulate", folder, top]
        number = str(NUMBERS[case.name])
        done = subprocess.run(command, input=number, env=env, cwd=hooked.ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return np.load(top / f"{number}.npy")

    return run


@pytest.mark.parametrize("case", every(30, CASES), ids=lambda case: case.name)
def test_memory_is_what_the_simulated_device_leaves(case, cubins, simulate):
    """ptxas's own code never reads too early, so its results stay right although early reads give garbage."""
    wanted = simulate(case)
    found, launch = interpret(cubins[case.file], case, seed=NUMBERS[case.name], strict=True)
    where = differences(case, found, wanted)
    assert not where, [(at, f"{found[at]:08x}", f"{wanted[at]:08x}") for at in where[:8]]
    assert launch.early == []


@pytest.mark.parametrize("kernel", ["meeting", "groups", full("calls"), full("globals"), full("locks")])
def test_the_order_of_warps_and_garbage_change_nothing(kernel, cubins):
    case = case_of(kernel)
    results = [interpret(cubins[case.file], case, seed)[0] for seed in range(3)]
    assert all((result == results[0]).all() for result in results)


def changed(cubin, kernel, change):
    """Return a copy of a cubin in which `change(index, word)` has replaced the words of a kernel."""
    section = cubin.find(f".text.{kernel}")
    words = dict(cubin.words)
    for index in range(section.size // 16):
        words[section.start + 16 * index] = change(index, words[section.start + 16 * index])
    return type(cubin)(cubin.table, cubin.sections, cubin.symbols, words)


YIELD, NOP, LDG = 0x946, 0x918, 0x981


def test_a_yield_where_others_wait_breaks_a_kernel(cubins):
    """A YIELD breaks a region in which other lanes already wait at the BSYNC, as on hardware. There's no NOP in such a
    place, so the YIELD replaces a load that the kernel can do without.
    """
    case = case_of("meeting")
    cubin = cubins[case.file]
    plain = interpret(cubin, case)[0]
    yields = 0x0000000003800000_0000000000007946
    broken = 0
    section = cubin.find(".text.meeting")
    for at in range(section.size // 16):
        word = cubin.words[section.start + 16 * at]
        if cubin.table.opcode(word).name != "POPC":
            continue

        def put(index, old, at=at):
            return yields if index == at else old

        try:
            broken += bool((interpret(changed(cubin, "meeting", put), case)[0] != plain).any())
        except (MemoryFault, Stuck, Unimplemented):
            broken += 1
    assert broken


def test_a_forgotten_wait_is_garbage(cubins):
    """Every removed wait is detected, unless another wait covers it; most change the result."""
    case = case_of("widths")
    cubin = cubins[case.file]
    plain = interpret(cubin, case)[0]
    section = cubin.find(".text.widths")
    noticed = different = waits = 0
    for at in range(section.size // 16):
        word = cubin.words[section.start + 16 * at]
        control = control_of(word)
        if not control.wait or cubin.table.opcode(word).name == "BRA":
            continue
        waits += 1
        without = with_control(word, control._replace(wait=0))
        copy = changed(cubin, "widths", lambda index, old, at=at, without=without: without if index == at else old)
        try:
            found, launch = interpret(copy, case, strict=True)
            noticed += bool(launch.early)
            different += bool((found != plain).any())
        except (MemoryFault, Stuck):
            noticed += 1
            different += 1
    assert waits > 5
    assert noticed >= waits * 3 // 4
    assert different >= waits // 2


def test_too_short_stall_is_found(cubins):
    case = case_of("arithmetic")
    cubin = cubins[case.file]

    def hasten(index, word):
        return with_control(word, Control(1, *control_of(word)[1:]))

    launch = make_launch(changed(cubin, "arithmetic", hasten), case, strict=True)[0]
    with contextlib.suppress(MemoryFault):  # the address may be garbage
        launch.run()
    assert launch.early


def test_lanes_without_a_guard_write_nothing(cubins):
    case = case_of("arithmetic")
    cubin = cubins[case.file]

    def silence(index, word):
        return with_guard(word, WordGuard(7, True)) if cubin.table.opcode(word).name == "STG" else word

    assert not interpret(changed(cubin, "arithmetic", silence), case)[0].any()


def test_unknown_bits_and_opcodes_are_refused(cubins):
    table = table_of("sm_90")
    word = next(word for word in cubins["memory"].words.values() if opcode_of(word) == LDG)
    make(word, table.opcode(word), table)
    for bit in (64, 66, 92, 100):
        with pytest.raises(Unimplemented, match="LDG"):
            make(word | 1 << bit, table.opcode(word), table)
    other = next(entry for entry in table.opcodes.values() if entry.name == "HGMMA")
    with pytest.raises(Unimplemented, match="HGMMA"):
        make(other.number, other, table)


def test_memory_that_was_not_allocated_is_a_fault():
    memory = GlobalMemory(np.random.default_rng(1), 1 << 12)
    at = memory.allocate(100)
    memory.load(np.array([at + 96], np.uint64), 4)
    for address, size in ((at + 97, 4), (at + 98, 4), (at + 100, 4), (at - 4, 4), (0, 8)):
        with pytest.raises(MemoryFault):
            memory.load(np.array([address], np.uint64), size)
