"""The simulated device's answers when PTX is loaded."""

import pytest

from tests import cuda
from tests.tiers import full

HEAD = ".version {}\n.target {}\n.address_size 64\n"
GOOD = ".visible .entry good(.param .u64 to)\n{\n    .reg .b64 %d;\n    ld.param.u64 %d, [to];\n"
GOOD += "    st.global.u32 [%d], 7;\n    ret;\n}\n"
BAD = ".visible .entry bad()\n{\n    .reg .b32 %r<2>;\n    frob.b32 %r1, 5;\n    ret;\n}\n"
FAULT = "line 7: not supported: 'frob.b32 %r1, 5;'"

# Load PTX in every way, with buffers for both logs. Return the status, and the logs' contents.
LOADS = """
import ctypes

class Options:
    def __init__(self):
        self.buffers = [create_string_buffer(b"x" * 400, 400) for _ in range(2)]
        self.kinds = (c_int * 4)(3, 4, 5, 6)  # information and errors: a buffer, its size
        self.values = (c_void_p * 4)(addressof(self.buffers[0]), 400, addressof(self.buffers[1]), 400)

    def logs(self):
        logs = [buffer.value.decode() for buffer in self.buffers]
        assert [len(log) for log in logs] == [self.values[1] or 0, self.values[3] or 0]
        assert not logs[0]
        return logs[1]

def module(text, options):
    return cu.cuModuleLoadDataEx(byref(c_void_p()), text, 4, options.kinds, options.values)

def library(text, options):
    return cu.cuLibraryLoadData(byref(c_void_p()), text, options.kinds, options.values, 4, None, None, 0)

def file(text, options):
    path = Path(sys.argv[1])
    path.write_bytes(text)
    found = byref(c_void_p()), str(path).encode()
    return cu.cuLibraryLoadFromFile(*found, options.kinds, options.values, 4, None, None, 0)

def link(text, options):
    state, image = c_void_p(), c_void_p()
    ok(cu.cuLinkCreate_v2(4, options.kinds, options.values, byref(state)))
    ok(cu.cuLinkAddData_v2(state, 1, text, c_size_t(len(text)), None, 0, None, None))
    return cu.cuLinkComplete(state, byref(image), None)

def check(text, status, log, *ways):
    for load in ways:
        options = Options()
        found = load(text, options), options.logs()
        assert found == (status, log), (load, found)
"""


@pytest.fixture(params=["module", full("library, file, link")])
def check(request, sim_play, tmp_path):
    """Load a text in several ways, and check the status and the error log."""

    def run(text, status, log, **env):
        script = f"{LOADS}\ncheck({text.encode()!r} + bytes(1), {status}, {log!r}, {request.param})"
        done = sim_play(script, tmp_path / "x.ptx", **env)
        said = f"libcuda.so.1: error: {log}\n" * len(request.param.split()) if log else ""
        assert (done.returncode, done.stderr) == (0, said), done.stderr

    return run


def test_unsupported_kernel_is_refused_with_its_line(check):
    check(HEAD.format("7.0", "sm_70") + BAD, 218, f"kernel 'bad': {FAULT}")


@pytest.mark.full
def test_a_module_with_one_bad_kernel_is_refused(check):
    check(HEAD.format("7.0", "sm_70") + BAD + GOOD, 218, f"PTX: {FAULT}")


@pytest.mark.parametrize(
    ("target", "arch", "runs"),
    [
        ("sm_100", "9.0", False),
        ("sm_100f", "10.3", True),
        ("sm_80, debug", "7.5", False),
        full("sm_90a", "9.0", True),
        full("sm_70", "9.0", True),
        full("sm_90a", "10.0", False),
        full("sm_100a", "10.3", False),
        full("sm_80", "7.5", False),
    ],
)
def test_target_unsupported_by_device(check, target, arch, runs):
    log = f"PTX: line 2: .target {target.partition(',')[0]}: the device is sm_{arch.replace('.', '')}"
    text = HEAD.format("8.8", target) + GOOD
    check(text, *((0, "") if runs else (218, log)), GPT_SIM_ARCH=arch)


@pytest.mark.full
def test_missing_function(check):
    """The module lacks a function that it calls, such as cudaGraphSetConditional, which CUDA provides in a library."""
    text = ".extern .func set(.param .b64 handle);\n.visible .entry k()\n{\n    .param .b64 a;\n    call set, (a);\n}\n"
    check(
        HEAD.format("7.0", "sm_70") + text,
        218,
        "kernel 'k': line 8: function 'set' is not defined here: 'call set, (a);'",
    )


def test_unknown_ptx_version(check):
    log = "PTX: line 2: .version 9.6: the newest that is known here is 9.5"
    check("// one\n" + HEAD.format("9.6", "sm_70") + GOOD, 222, log)
    check(HEAD.format("7.9", "sm_70") + GOOD, 222, "PTX: line 1: .version 7.9: the newest that is known here is 9.5")
    check(HEAD.format("9.5", "sm_90") + BAD, 218, f"kernel 'bad': {FAULT}")


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (".version 8.0\n.target sm_83", "2:1: PTX: '.target sm_83': no such target: 'sm_83'"),
        (".version 7.0\n.target sm_90", "2:1: PTX: '.target sm_90': 'sm_90' needs .version 7.8 or later, not 7.0"),
        (".version 7.0\n.target sm_70\n.address_size 63", "3:1: PTX: '.address_size 63': addresses have 32 or 64 bits"),
        (".version 7.0", "2:1: PTX: no .target after .version"),
    ],
)  # fmt: skip
def test_header_no_driver_accepts(check, head, fault):
    check(f"{head}\n{GOOD}", 218, f"kernel 'good': line {fault}")


@pytest.mark.parametrize(
    ("unneeded", "fault"),
    [
        (".func f() { ret; }\n.func f() { ret; }", "line 5: 'f' is defined twice"),
        (".func f();", "line 4: 'f' is declared, not '.extern', and defined nowhere"),
        (".global .u32 x;\n.global .u32 x;", "line 5: 'x' is declared twice"),
        ('.pragma "unknown";', "line 4: pragma 'unknown' of a module, which has only 'nounroll'"),
    ],
)
def test_unused_functions_are_checked(check, unneeded, fault):
    check(f"{HEAD.format('7.0', 'sm_70')}{unneeded}\n{GOOD}", 218, f"kernel 'good': {fault}")


def test_loaded_code_is_cached(sim_play, tmp_path):
    head = HEAD.format("7.0", "sm_70")
    (tmp_path / "one.ptx").write_text(head + GOOD + "\0")
    (tmp_path / "two.ptx").write_text(head + GOOD + GOOD.replace("good", "other") + "\0")
    script = """
    for path in sys.argv[2:]:
        module, memory = load(path), Memory(1)
        if sys.argv[1] == "launch":
            ok(launch(function(module, "good"), 1, 1, memory))
            assert memory.read() == [7]
    """
    kept = tmp_path / "cache" / "gpt" / "sim"
    for does, count, env in [("load", 4, {}), ("launch", 5, {}), ("launch", 5, {"PATH": "/nowhere"})]:
        done = sim_play(script, does, tmp_path / "one.ptx", tmp_path / "two.ptx", **env)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(list(kept.iterdir())) == count  # two outlines, a kernel, a check, and a kernel of the second text


def test_fatbins_are_loaded_lazily(sim_play, tmp_path):
    text = (HEAD.format("7.0", "sm_70") + BAD + GOOD).encode()
    (tmp_path / "code").write_bytes(cuda.fatbin([("sm_70", "ptx", text)], "none"))
    script = """
    module, memory = load(sys.argv[1]), Memory(1)
    for _ in range(2):
        assert launch(function(module, "bad"), 1, 1) == 218
    ok(launch(function(module, "good"), 1, 1, memory))
    assert memory.read() == [7]
    """
    done = sim_play(script, tmp_path / "code")
    assert (done.returncode, done.stderr) == (0, f"libcuda.so.1: error: kernel 'bad': {FAULT}\n")


def test_the_driver_has_the_name_of_its_development_package_too(sim_play):
    script = """
    other = CDLL("libcuda.so")
    assert cast(other.cuInit, c_void_p).value == cast(cu.cuInit, c_void_p).value
    """
    done = sim_play(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_damaged_image_is_refused_with_a_reason(sim_play):
    script = """
    images = [b"\\x7fELF" + bytes(200), bytes.fromhex("50ed55ba01001100") + bytes(64)]
    assert [cu.cuModuleLoadData(byref(c_void_p()), image) for image in images] == [200, 200]
    empty = bytes.fromhex("50ed55ba01001000") + bytes(64)  # a fatbin without elements
    assert cu.cuModuleLoadData(byref(c_void_p()), empty) == 209
    def one_element(kind):
        head = bytes.fromhex("50ed55ba01001000") + (64).to_bytes(8, "little")
        return head + kind.to_bytes(2, "little") + bytes.fromhex("010140000000") + bytes(56)
    assert cu.cuModuleLoadData(byref(c_void_p()), one_element(0)) == 209  # as gpt-patch leaves it
    assert cu.cuModuleLoadData(byref(c_void_p()), one_element(8)) == 209
    """
    done = sim_play(script)
    assert done.returncode == 0, done.stderr
    assert "cut off or damaged" in done.stderr and "a fatbin without PTX;" in done.stderr
    assert "a fatbin without PTX, of which gpt-patch cut code;" in done.stderr
    assert "a fatbin without PTX, with intermediate code of another kind (LTO);" in done.stderr
