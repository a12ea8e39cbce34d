"""A new back end is a class and a line in the table; no other code has to change."""

from dataclasses import dataclass

import pytest

from gpt.asm.assembler import Assembler
from gpt.asm.backend import AssembledModule, Options
from gpt.asm.backends import BACKENDS, parse_targets
from gpt.asm.images import iter_images
from gpt.base.cache import Cache
from gpt.base.errors import GptError, UsageError
from gpt.stream import records


@dataclass(frozen=True)
class Page:
    """A target: `paper`."""

    family = "paper"

    def __str__(self):
        return "paper"


class Printer:
    kind = "cubin"

    def __init__(self, options):
        self.printed = 0

    @staticmethod
    def parse_target(word):
        if word != "paper":
            raise UsageError(f"not paper: '{word}'")
        return Page()

    def target_for(self, text, target):
        return target

    def key(self, text, target):
        if not text:
            raise GptError("nothing to print")
        return [b"ink"]

    def make(self, text, name, target):
        self.printed += 1
        return AssembledModule(text.upper(), {"k": {"registers": self.printed}}, [(f"{name}:1", "faint")])

    def stop(self):
        pass


@pytest.fixture(autouse=True)
def printer(monkeypatch):
    monkeypatch.setitem(BACKENDS, "paper", Printer)


def test_arch_names_targets_of_all_back_ends():
    assert list(map(str, parse_targets("paper,sm_90,paper"))) == ["paper", "sm_90"]
    with pytest.raises(UsageError, match="--arch: not a compute capability: 'stone'"):
        parse_targets("paper,stone")


def test_the_back_end_of_a_target_makes_its_code(tmp_path):
    assembler = Assembler(parse_targets("paper"), Options(), Cache(tmp_path))
    (target,) = assembler.targets(b"text")
    first, again = (assembler.assemble(b"text", name, target) for name in ("m", "n"))
    assert (first.image, first.kernels, first.warnings) == (b"TEXT", {"k": {"registers": 1}}, [("m:1", "faint")])
    assert (again.kernels, again.warnings) == (first.kernels, [("n:1", "faint")])  # from the cache
    with pytest.raises(GptError, match="m: nothing to print"):
        assembler.assemble(b"", "m", target)
    ptx = records.make("ptx", id=0, module="m", arch="paper", kernels=["k"], data=b"text")
    (image,) = iter_images(ptx, [first], [None], None)
    assert (image["kind"], image["arch"], image["kernels"], image["data"]) == ("cubin", "paper", ["k"], b"TEXT")
