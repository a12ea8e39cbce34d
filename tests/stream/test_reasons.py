"""Reasons: Python, C and gpt-stream(5) share one table; current and old records are read alike."""

import io
import re
import subprocess
from pathlib import Path

import pytest

from gpt.analyze.lib.coverage import make_coverage
from gpt.stream import records, wire
from gpt.stream.reasons import EARLIER, FORMER, OTHER, TABLE, Reason, find_reason, parse
from gpt.trace.kinds import COVERED
from gpt.trace.process import iter_processes
from tests.trace import forge

ROOT = Path(__file__).resolve().parents[2]
USES = re.compile(
    r"\b(?:WHY|WHY_DETAIL)\((\w+)|hook_make_reason\(\"(\w+)\"|LeftAlone\(\s*\"(\w+)\"|Reason\(\"(\w+)\"|GPT_FAULT\((\w+),"
)


def sources(*folders):
    return [path for folder in folders for end in ("*.c", "*.py") for path in (ROOT / folder).rglob(end)]


def test_each_reason_has_a_text_and_an_advice_and_is_documented():
    page = (ROOT / "man/man5/gpt-stream.5").read_text().partition(".Sh REASONS")[2].partition(".Sh JSON")[0]
    documented = dict(re.findall(r"^\.It (\w+) Ta (.*)$", page.replace("\\-", "-"), re.M))
    assert documented == {code: text for code, (text, _) in TABLE.items()}
    assert all(text for text, _ in TABLE.values())
    assert [code for code, (_, advice) in TABLE.items() if not advice] == ["left_out"]
    assert len({text for text, _ in TABLE.values()}) == len(TABLE)  # otherwise a printed reason could be ambiguous
    assert "\n## Kernels without PTX\n" in (ROOT / "README.md").read_text()


def test_codes_in_use_equal_codes_in_the_table():
    found = {
        code
        for path in sources("runtime/hook", "runtime/common", "gpt/probe")
        for match in USES.findall(path.read_text())
        for code in match
    } - {"", "code"}
    assert found <= set(TABLE)
    # One reason was split.
    assert set(TABLE) - found == {"stage_error", "no_place", "no_save"} - found | {OTHER, "supervisor"}


def test_c_has_the_same_table(tmp_path):
    """Return the table that a compiler reads from the generated header."""
    source = tmp_path / "table.c"
    source.write_text(
        '#include <stdio.h>\n#include "abi/records.h"\n'
        '#define X(code, text, advice) printf("%s\\t%s\\t%s\\n", #code, text, advice);\n'
        "int main(void) { GPT_REASONS(X) }\n"
    )
    subprocess.run(["cc", "-I", ROOT / "runtime", source, "-o", tmp_path / "table"], check=True)
    lines = subprocess.run([tmp_path / "table"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [tuple(line.split("\t")) for line in lines] == [(code, *rest) for code, rest in TABLE.items()]


@pytest.mark.parametrize("reason", [*map(Reason, TABLE), Reason("load_refused", "error 2"), Reason(OTHER, "x: y")])
def test_a_printed_reason_reads_back(reason):
    assert parse(str(reason)) in (reason, Reason(reason.code, "another reason"))
    assert (reason.advice != "") == (reason.code not in (OTHER, "left_out"))


def test_diag_code_of_another_stage_is_printed_unchanged():
    assert str(Reason("sass_hazard", "at 0x40")) == "sass_hazard: at 0x40" and not Reason("sass_hazard").advice


OLD = {  # the sentences that the hook wrote before there were codes
    "its device is not known": ("no_device", ""),
    "the driver does not load it with probes: 209": ("load_refused", "209"),
    "no PTX comes with it": ("no_ptx", ""),
    "no probe applies to it: 'x' has no OUT": ("no_place", "'x' has no OUT"),
    "the pipeline failed: gpt-asm ended": ("pipeline_failed", "gpt-asm ended"),
    "its variable 'v' is not found": ("variable_missing", "its variable 'v' is not found"),
    "--benchmark: the driver makes no event": ("benchmark", "--benchmark: the driver makes no event"),
    "gpt-hook's supervisor has ended": ("supervisor", "gpt-hook's supervisor has ended"),
    "--benchmark saves no buffers": ("not_saved", ""),
    "nobody knows": (OTHER, "nobody knows"),
    "": (OTHER, ""),
}


@pytest.mark.parametrize("sentence", OLD)
def test_a_sentence_of_before_has_a_code(sentence):
    assert parse(sentence) == OLD[sentence] and {*EARLIER.values(), *FORMER.values()} <= set(TABLE)


def test_an_old_trace_reads_like_a_new_one():
    """An old trace only has the sentence; counts and messages are the same."""
    told = {}
    for age in ("old", "new"):
        made = [forge.launches(dict.fromkeys(range(1, len(OLD) + 1), 9))]
        for number, (sentence, (code, detail)) in enumerate(OLD.items(), 1):
            values = {"reason": sentence} if age == "old" else {"code": code, "detail": detail or None}
            made.append(records.make("unprobed", function=number, launches=number, **values))
        file = io.BytesIO(forge.pack(forge.trace(*made)))
        (process,) = iter_processes(wire.read_records(file, "in"), COVERED)
        coverage = make_coverage(process)
        told[age] = [*coverage.verdict()], [*coverage.answer()], coverage.unprobed
    assert told["old"] == told["new"]
    assert sum(told["old"][2].values()) == sum(range(1, len(OLD) + 1))
    assert any("--benchmark saves no buffers" in line for line in told["old"][0])


def test_a_kernel_with_probes_has_no_reason():
    assert find_reason({"kind": "kernel", "id": 1, "name": "k"}) is None
