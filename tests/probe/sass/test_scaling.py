"""The work of weaving grows in proportion to the number of places."""

import sys

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.probe.sass.weave import weave
from gpt.sass.check_words import make_branch
from gpt.sass.code import Code
from gpt.sass.tables import table_of
from gpt.sass.words import NO_BARRIER, SIZE, Control, Guard, dump_words, with_control, with_guard
from tests.probe.sass import running
from tests.sass.interp.cases import CASES

CASE = next(case for case in CASES if case.name == "stack-2x33-5")
PROBES = [running.probe("gmem_bytes"), running.probe("branch_divergence")]
FEW = 24


def with_loads(count):
    """Return a cubin whose kernel has `count` more loads, each followed by a branch over the next one."""
    editor = CubinEditor(running.image(CASE.file))
    kernel = KernelEditor(editor, CASE.kernel)
    code = Code(bytes(kernel.code), table_of(running.ARCH))
    at = code.find({"LDG"})[0]
    assert not any((index < at) != (code[index].target < SIZE * at) for index in code.jumps)
    words = []
    for branch in range(at + 1, at + 2 * count, 2):
        to = min(branch + 2, at + 2 * count)
        word = with_guard(make_branch(branch, to, code.table.arch.branch), Guard(0, False))
        words += [code.words[at], with_control(word, Control(5, False, NO_BARRIER, NO_BARRIER, 0, 0))]
    kernel.insert(SIZE * at, dump_words(words))
    return editor.build()


def count_steps(function):
    """Return the number of lines of Python that run, including each turn of a loop."""
    steps = 0

    def trace(frame, event, arg):
        nonlocal steps
        steps += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps


def test_four_times_the_places_take_four_times_the_work():
    try:
        cubins = [with_loads(count) for count in (FEW, FEW, 2 * FEW, 4 * FEW)]
    except FileNotFoundError as error:
        pytest.skip(str(error))
    steps, matched = [], []
    for cubin in cubins:

        def run(cubin=cubin):
            made = weave(cubin, CASE.kernel, running.ARCH, PROBES, running.compiler())
            matched.append(sum(site.woven for site in made.sites))

        steps.append(count_steps(run))
    _, few, twice, most = steps  # the first one also loads snippets
    assert matched[2] - matched[1] == 3 * FEW  # a branch has two snippets
    assert matched[3] - matched[2] == 6 * FEW
    assert most - twice < 1.1 * 2 * (twice - few)
