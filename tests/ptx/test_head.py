"""The heads of modules, compared with the installed ptxas."""

import itertools
import subprocess

import pytest

from gpt.base.errors import MalformedError
from gpt.ptx.head import NEWEST, TARGETS, VERSIONS, Head, read_head
from gpt.ptx.scan import scan_module
from tests import cuda
from tests.tiers import FULL, full

KERNEL = "\n.visible .entry k() { ret; }\n"
UNKNOWN = [
    number for number in (14, 40, 71, 76, 81, 83, 84, 85, 91, 92, 99, 102, 104, 122) if str(number) not in TARGETS
]
ORDER = [  # heads, and whether ptxas rejects them
    (".version 8.0\n.target sm_75", False),
    (".version 8.0 .target sm_75 .address_size 64", False),
    ("// one\n/* two */ .version\t8.0 // three\n.target /* four */ sm_75 , /* five */ texmode_unified", False),
    ('# 3 "a.cu"\n.version 8.0\n.target\nsm_75\n.address_size\n0x40', False),
    (".version 8.0\n.target compute_75\n.address_size 0100", False),
    (".version 8.0\n.target sm_75\n.address_size 64U", False),
    ("", True),
    (".target sm_75", True),
    (".version 8.0", True),
    (".version 8.0\n.address_size 64", True),
    (".version 8.0\n.address_size 64\n.target sm_75", True),
    (".target sm_75\n.version 8.0", True),
    (".address_size 64\n.version 8.0\n.target sm_75", True),
    ('.file 1 "a"\n.version 8.0\n.target sm_75', True),
    ('.version 8.0\n.file 1 "a"\n.target sm_75', True),
    ('.version 8.0\n.target sm_75\n.file 1 "a"\n.address_size 64', True),
    (".version 8.0\n.version 8.0\n.target sm_75", True),
    (".version 8.0\n.target sm_80\n.target sm_75, texmode_unified", False),
    (".version 8.0\n.target texmode_unified\n.target sm_75", True),
    (".version 8.0\n.target sm_75\n.address_size 64\n.target sm_75", True),
    (".version 8.0\n.target sm_75\n.version 8.0\n.target sm_75", True),
    (".version 8.0\n.target sm_75\n.address_size 64\n.address_size 64", True),
    (f".version 8.0\n.target sm_75{KERNEL}.address_size 64", True),
    (f".version 8.0\n.target sm_75{KERNEL}.target sm_75", True),
    *((f".version 8.0\n.target sm_75\n.address_size {n}", True) for n in ("63", "0", "128", "064", "-64", "64.0", "")),
    (".version 2.2\n.target sm_20\n.address_size 64", True),
    (".version 2.3\n.target sm_20\n.address_size 64", False),
    *((f".version {n}\n.target sm_75", True) for n in ("7.9", "0.9", "9.05", "8.0.1", "8", "8.", "+8.0", "8 .0")),
    *((f".version {n}\n.target sm_75", True) for n in ("\n8.0", "/**/ 8.0", "8.0f", "8.0;", "9.6", "10.0", "99.9")),
    *((f".version 8.0\n.target {n}", True) for n in ("", "foo", "sm_", "sm_90f", "SM_75", "debug", "sm_9000")),
    *((f".version 8.0\n.target sm_75{more}", True) for more in (" debug", ",", ", foo", ", sm_83", ", sm_100", "; ")),
    (".version 8.0\n.target texmode_unified, sm_75", True),
]  # fmt: skip


def head(text):
    """Return the head of a module, or the error in it."""
    try:
        return read_head(scan_module(text.encode()))
    except MalformedError as error:
        return str(error)


@pytest.fixture(scope="module")
def refused():
    """Return a function that says whether ptxas refuses a module."""
    try:
        ptxas = str(cuda.tool("ptxas"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    known = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout

    def refuses(text, target="121"):
        arch = target if f"'compute_{target}'" in known else "121a"
        command = [ptxas, f"-arch=compute_{arch}", "/dev/stdin", "-o", "/dev/null"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        # "cannot be compiled" isn't a refusal: ptxas says so for sm_101a, which has another name now
        return done.returncode != 0 and "cannot be compiled" not in done.stderr

    return refuses


@pytest.fixture(scope="module")
def versions(refused):
    """Return the versions of PTX that the installed ptxas knows."""
    return [version for version in VERSIONS if not refused(f".version {version}\n.target sm_10, sm_12, sm_50{KERNEL}")]


@pytest.mark.parametrize(("text", "wrong"), ORDER)
def test_directives_in_the_wrong_place_are_refused(refused, text, wrong):
    assert refused(text + KERNEL) == wrong
    found = head(text + KERNEL)
    assert (isinstance(found, str) or found.is_newer) == wrong


def test_version_target_and_address_size_are_read():
    assert head(".version 8.5\n.target sm_90a, debug\n.section .debug_info { }") == Head((8, 5), 90, "a", 64)
    assert head(".version 7.0\n.target sm_80, sm_75\n.address_size 32") == Head((7, 0), 75, "", 32)
    assert (
        head(".version 12.3\n.target sm_200a, foo") == Head((12, 3), 200, "a")
        and Head(NEWEST, 90, "").is_newer is False
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (".version 7.9\n.target sm_75", "PTX:1:1: PTX: '.version 7.9': no such version of PTX"),
        ("\n.target sm_75", "PTX:2:1: PTX: no .version at the beginning"),
        (".version 7.0\n.target foo", "PTX:2:1: PTX: '.target foo': no such target: 'foo'"),
        (".version 7.0\n.target sm_90", "PTX:2:1: PTX: '.target sm_90': 'sm_90' needs .version 7.8 or later, not 7.0"),
        (".version 2.0\n.target sm_20, debug", "PTX:2:1: PTX: '.target sm_20, debug': 'debug' needs .version 3.0"),
        (".version 7.0\n.target sm_75\n.address_size 63", "PTX:3:1: PTX: '.address_size 63': addresses have 32"),
        (".version 7.0\n.address_size 64\n.target sm_75", "PTX:2:1: PTX: no .target after .version"),
    ],
)  # fmt: skip
def test_reasons(text, fault):
    assert head(text).startswith(fault)


@pytest.mark.parametrize("every", [False, full(True)])
def test_targets_of_versions(refused, every):
    """Compare the first PTX version that has a target with the version before it, or compare every version."""
    known = [version for version in VERSIONS if not refused(f".version {version}\n.target sm_10{KERNEL}")]
    for target, since in itertools.islice(TARGETS.items(), 0, None, 1 if every else 4):
        first = known.index(since) if since in known else len(known)
        for version in known if every else known[max(first - 1, 0) : first + 1]:
            text = f".version {version}\n.target sm_{target}{KERNEL}"
            assert refused(text, target) == isinstance(head(text), str), text
    unknown = [
        *UNKNOWN,
        *(f"{number}{suffix}" for number in TARGETS for suffix in "af" if number + suffix not in TARGETS),
    ]
    for target in unknown if every else unknown[::9]:
        text = f".version {known[-1]}\n.target sm_{target}{KERNEL}"
        if str(target)[-1:] not in "af" or str(target)[:-1].isdecimal():
            assert refused(text) and isinstance(head(text), str), text


@pytest.mark.parametrize("target", [full("sm_12"), full("sm_13"), full("sm_20"), "sm_75", full("sm_90")])
def test_options(refused, target):
    """Compare each option of a target and each pair, with and without debug information, in some versions."""
    options = ["debug", "texmode_unified", "texmode_independent", "map_f64_to_f32"]
    for version in ("1.4", "1.5", "2.3", "3.0", "8.0") if FULL else ("1.5", "3.0"):
        for first in options:
            for second in ["", *options]:
                for more in (
                    ("", ".section .debug_info { .b8 0 }") if "debug" in (first, second) and version > "2" else ("",)
                ):
                    text = f".version {version}\n.target {target}, {first}{', ' * bool(second)}{second}{KERNEL}{more}"
                    assert refused(text) == isinstance(head(text), str), text
