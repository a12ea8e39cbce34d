"""The back end for GPUs: ptxas, which writes cubins.

The output counts only if it's complete: exit status 0 and a cubin that can be parsed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import ClassVar

from gpt.asm.backend import AssembledModule, Options
from gpt.asm.find import Tool, Tools
from gpt.asm.processes import Processes, signal_name
from gpt.asm.reports import MODULE, Report, find_faults, find_messages, read_reports, shorten
from gpt.asm.targets import GpuTarget, find_source, find_version
from gpt.base.arch import parse_arch
from gpt.base.errors import GptError, MalformedError
from gpt.base.scratch import scratch_folder
from gpt.formats.nvinfo import read_needs


@dataclass(frozen=True)
class Assembled:
    """A cubin, what ptxas reported about its functions, and warnings as pairs of location and text."""

    cubin: bytes
    reports: dict[str, Report] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    output: bytes = b""


class Ptxas:
    """ptxas as a back end. It uses an installed ptxas that supports the module's PTX version and target."""

    kind: ClassVar[str] = "cubin"

    def __init__(self, options: Options) -> None:
        """Find ptxas. Raises MissingError if it isn't installed."""
        self._tools = Tools(options.tool)
        self._tools.first()
        self._options = options
        self._runner = Runner(options.timeout)

    @staticmethod
    def parse_target(word: str) -> GpuTarget:
        """Parse `sm_90a` or `9.0a`. Raises UsageError."""
        return GpuTarget(*parse_arch(word))

    def target_for(self, text: bytes, target: GpuTarget) -> GpuTarget:
        """Return the target. If it's `sm_90` and the module requires `sm_90a`, return that."""
        return target.for_source(find_source(text))

    def key(self, text: bytes, target: GpuTarget) -> list[bytes]:
        """Return the version and the arguments of the ptxas that will be used.

        Raises GptError if the module is for another GPU, and MissingError if no ptxas supports it.
        """
        source = find_source(text)
        if source and not target.runs(source):
            raise GptError(f"is for {source} and cannot be assembled for {target}")
        tool = self._tools.choose(find_version(text), target)
        return [tool.identity.encode(), " ".join([str(target), *_arguments(self._options)]).encode()]

    def make(self, text: bytes, name: str, target: GpuTarget) -> AssembledModule:
        """Assemble a module. Raises Faults if ptxas rejects it, GptError if ptxas fails."""
        tool = self._tools.choose(find_version(text), target)
        done = self._runner.assemble(tool, text, name, target, self._options)
        return AssembledModule(done.cubin, _resources(done), done.warnings, done.output)

    def stop(self) -> None:
        """End running jobs and start no more."""
        self._runner.stop()


class Runner(Processes):
    """Runs ptxas, from several threads at once. `stop` kills all processes."""

    def assemble(self, tool: Tool, text: bytes, name: str, target: GpuTarget, options: Options) -> Assembled:
        """Assemble a module, called `name` in messages.

        Raises Faults if ptxas rejects the text, and GptError if ptxas itself fails.
        """
        with scratch_folder("gpt-asm-") as folder:
            folder.write(MODULE, text)
            command = [tool.path, "-v", f"-arch={target}", *_arguments(options), MODULE, "-o", "module.cubin"]
            try:
                status, output = self.run(command, folder.working)
            except TimeoutError:
                slow = f"{tool.name} took over {self._timeout:g} s for {target} and was killed (--timeout)"
                raise GptError(slow, name) from None
            cubin = b"" if status else folder.read("module.cubin")
        if status < 0:
            raise GptError(f"{tool.name} crashes on it, for {target}: {signal_name(-status)}", name)
        if status:
            raise find_faults(output, text, name, target) or GptError(
                f"{tool.name} fails on it, for {target}: status {status}, {shorten(output)}", name
            )
        try:
            read_needs(cubin)
        except MalformedError as error:
            raise GptError(f"{tool.name} reports success but wrote no cubin: {error.fact}", name) from None
        reports = read_reports(output, options.relocatable)
        messages = find_messages(output, text, name, target, (b"warning", b"info"))
        return Assembled(cubin, reports, messages, output)


def _arguments(options: Options) -> list[str]:
    found = []
    if options.level is not None:
        found.append(f"-O{options.level}")
    if options.registers is not None:
        found.append(f"--maxrregcount={options.registers}")
    if options.relocatable:
        found.append("-c")
    if options.line_info:
        found.append("-lineinfo")
    return found


def _resources(done: Assembled) -> dict[str, dict[str, int]]:
    """Return the resources that each kernel needs.

    Registers, constant banks, and the stack (callees included) are from the cubin. The number of spilled bytes,
    and the shared memory that the kernel itself declares, are only in ptxas's report.
    """
    found: dict[str, dict[str, int]] = {}
    for name, needs in read_needs(done.cubin).items():
        values = asdict(needs)
        if report := done.reports.get(name):
            values |= {"spills": report.spills, "stack": max(values["stack"], report.frame)}
            values |= {} if report.shared is None else {"shared": report.shared}
        found[name] = values
    return found
