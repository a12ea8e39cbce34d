"""The reasons why a kernel or a launch has no probes, and why the data of a buffer is missing.

A record has the `code` of a reason, and if there's more to say, a `detail`. The text for people comes from the table
below. Programs compare codes and never texts, so the texts can be improved. From this table, `make` generates
`GPT_REASONS` in `runtime/abi/records.h`, and a test compares it with REASONS in gpt-stream(5).

To add a reason, add a line here and one in gpt-stream(5). Never change a code, because traces contain it.

In traces from before there were codes, `unprobed` and `kernel` have a sentence instead, as `reason`; `parse` translates
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

OTHER = "other"

_README = "(README, Kernels without PTX)"
_MEMORY = "--max-memory gives more"
_KEEP = "GPT_KEEP=DIR keeps what the pipeline made of each kernel"
_NODE = "leave some of its kernels out with -k or --filter, so that the others may get probes"
_REBUILD = "instantiate the graph again in place of the change or update"
_LIMITS = "gpt-sass-probe(1), LIMITS, says which kernels can have probes"
_REPORT = "report it with the cubin, which gpt-extract --save keeps"
_SERVED = "gpt-hook(1), SUPERVISOR, says which processes it answers"
_LESS = "a probe that saves fewer values needs less"

# code -> text and advice; there's no advice if the user wanted it that way
TABLE: dict[str, tuple[str, str]] = {
    # The kernel's image
    "no_ptx": ("no PTX comes with it", f"build it with PTX, or use torch.compile or Triton {_README}"),
    "closed_library": (
        "it belongs to one of NVIDIA's closed libraries",
        f"torch.compile generates its own kernels for many of these operations {_README}",
    ),
    "linked": ("the driver linked it from something other than one PTX module", f"link it when you build it {_README}"),
    "file_changed": ("its file was changed since it was loaded", "start the program again"),
    "image_unreadable": ("its image cannot be read", "check the file that the program loads it from"),
    "image_too_large": ("its image is too large", "load it from a file, or as several modules"),
    "unknown_source": (
        "the source of its code is unknown",
        "start the program with gpt-hook run -p or --control, so that gpt-hook sees what it loads",
    ),
    "no_memory": ("memory ran out", "give the process more memory"),
    # The pipeline and what it makes
    "not_ready": (
        "it was not looked up by name, or is still being compiled",
        "use a longer --wait, or run again: by then the kernel is in the cache",
    ),
    "pipeline_failed": ("the pipeline failed", _KEEP),
    "pipeline_empty": ("the pipeline returned no kernel for it", _KEEP),
    "pipeline_wrong": ("the pipeline's answer makes no sense", f"check its last stage; {_KEEP}"),
    "stage_error": ("a stage of the pipeline reports an error", _KEEP),
    "supervisor": ("gpt-hook's supervisor did not serve it", _SERVED),  # written by earlier versions
    "no_supervisor": ("gpt-hook has no supervisor", _SERVED),
    "supervisor_gone": ("gpt-hook's supervisor is gone, or out of reach", _SERVED),
    "supervisor_untrusted": ("gpt-hook's supervisor cannot be trusted", _SERVED),
    "supervisor_refuses": ("gpt-hook's supervisor refuses it", _SERVED),
    "connection_closed": (
        "the program closed the connection to gpt-hook's supervisor",
        "a cached result needs none: run it again",
    ),
    "pipeline_late": ("the pipeline did not answer in time", _KEEP),
    # Weaving
    "no_place": (
        "no probe applies to it",
        "its positions match nothing in the kernel; -k or --filter can leave it out",
    ),
    "no_save": (
        "no probe that saves applies to it",
        "its positions match nothing in the kernel; -k or --filter can leave it out",
    ),
    "woven": ("it is woven already", "start from the PTX without probes"),
    "old_ptx": ("its PTX is too old", "build it with a newer CUDA, or for a newer architecture"),
    "undefined": (
        "it needs a function that is defined elsewhere",
        "link it when you build it, or weave it with gpt-ptx-probe -c for gpt-asm -c",
    ),
    "not_alone": (
        "it cannot be loaded alone",
        "gpt-ptx-probe(1), Kernels that are left alone, lists what such code must not use",
    ),
    "variables": (
        "its variables are used in a way that cannot be followed",
        "gpt-ptx-probe names the place; PTX as compilers write it works",
    ),
    "function": ("a probe is in a function that cannot have another parameter", "call the function directly"),
    "too_large": ("it is too large with its probes", _LESS),
    # Machine code
    "no_table": ("there is no instruction table for its architecture", _LIMITS),
    "not_proven": ("probes in machine code for its architecture have not been proven on hardware", _LIMITS),
    "unknown_opcode": ("one of its instructions is not in the instruction table of its architecture", _REPORT),
    "unbounded": ("its instructions do not show where it jumps", _REPORT),
    "unknown_entry": ("it does not begin like a kernel made by ptxas", _REPORT),
    "no_schedule": (
        "its instructions do not say when their results arrive: it was compiled without optimization",
        "compile it without -O0 and without -g or -G",
    ),
    "tile_kernel": ("it is a CUDA Tile kernel, whose launch does not say how many threads a block has", _LIMITS),
    "no_registers": ("it has no registers to spare for its probes", _LESS),
    "unproven": ("its probes could not be proven harmless", _REPORT),
    # Loading
    "driver_too_old": ("the driver is too old: 12.0 is needed", "install a driver for CUDA 12.0 or later"),
    "no_device": ("its device is unknown", "nothing: the driver does not say which architecture it has"),
    "load_refused": ("the driver refused to load it with probes", _KEEP),
    "not_found": ("the driver did not find it after loading it with probes", _KEEP),
    "variable_missing": ("one of its variables was not found", _KEEP),
    "variable_elsewhere": (
        "its machine code has the addresses of its module's variables in another context",
        "nothing: where a kernel has variables, only the first context of a library's kernel gets probes",
    ),
    "other_parameters": ("the pipeline reported other parameters than the kernel has", _KEEP),
    "property": ("the program sets an attribute that it cannot have with probes", "nothing: probes need a part of it"),
    "occupancy": (
        "the program asked for its occupancy, which is lower with probes",
        "nothing: it is assembled again with fewer registers, and used from then on",
    ),
    "not_here": (
        "it was not loaded with probes in this context yet",
        "nothing: it is loaded at the program's next look-up, load or wait in the context",
    ),
    # Launches
    "left_out": ("it was left out, as --launch-skip, --launch-count or --sample say", ""),
    "registers": (
        "with probes, a block this large has too few registers",
        "nothing: it is assembled again with fewer registers, and used from then on",
    ),
    "cooperative": (
        "with probes its cooperative grid does not fit",
        "nothing: it is assembled again with fewer registers, and used from then on",
    ),
    "stream_unknown": ("gpt-hook did not see its stream being created", "start the program with gpt-hook"),
    "stream_context": (
        "its stream belongs to another context than the current one",
        "make the stream's context current before the launch",
    ),
    "parameters": ("the parameters passed do not match the kernel's", "pass all parameters of the kernel"),
    "constants": ("its constants cannot be copied", "nothing: the driver refused the copy"),
    "dependent_constants": (
        "its constants must be copied, and it depends on its predecessor",
        "nothing: a programmatic dependent launch cannot wait for the copy",
    ),
    "dependent_buffer": (
        "no cleared buffer was ready for a launch that depends on its predecessor",
        "nothing: a programmatic dependent launch cannot wait for one",
    ),
    "old_launch": (
        "it was launched by a function that CUDA has deprecated",
        "call cuLaunchKernel in place of cuLaunch, cuLaunchGrid and cuLaunchGridAsync",
    ),
    "launch_refused": ("the driver refused the launch with probes", _KEEP),
    "benchmark": ("--benchmark cannot measure it", "run without --benchmark to probe it"),
    # Buffers
    "no_buffer": ("no buffer was free within --max-memory", f"{_MEMORY}, --complete waits"),
    "buffers_over_limit": ("its buffers are larger than --max-memory", _MEMORY),
    "buffers_too_large": ("its buffers are too large", _LESS),
    "device_memory": ("the device has no memory for its buffers", "a smaller --max-memory may fit"),
    "device_buffers": (
        "no buffers can be allocated on the device",
        "nothing: the driver refused the memory or the stream for them",
    ),
    "stream_events": ("its stream refused an event or a copy", "nothing: the driver refused them"),
    "ending": ("the process was about to end", "nothing: its buffers could not be read any more"),
    # Graphs
    "graph_over_limit": ("the buffers of its graph are larger than half of --max-memory", _MEMORY),
    "graph_buffers": ("other graphs hold all buffers that --max-memory allows", _MEMORY),
    "graph_early": ("its graph was made before these probes were chosen", "make the graph after the probes are chosen"),
    "graph_refused": ("the driver refused its graph with probes", _NODE),
    "graph_on_device": ("its graph can be launched from the device", "make it without the flag for device launches"),
    "graph_changed": ("its graph was changed after an update", _REBUILD),
    "graph_outgrown": ("it was changed too often to a kernel with larger buffers", _REBUILD),
    "graph_conditional": ("its graph was changed inside a conditional node", _REBUILD),
    "graph_unknown": ("a graph inside it was replaced by an unknown one", _REBUILD),
    "graph_disabled": ("a node of its graph was disabled before an update", _REBUILD),
    "graph_context": (
        "it was launched into a default stream of another context",
        "make the graph's context current before the launch, or use a stream of it",
    ),
    # Times of a graph's nodes
    "nodes_parallel": (
        "its nodes don't run strictly one after another",
        "'gpt-hook run -p block_sched' times the kernels of any graph",
    ),
    "nodes_memory": ("it has nodes that allocate or free memory", "allocate outside of the graph"),
    "nodes_conditional": ("it has conditional nodes", "nothing: how often they run is unknown"),
    "nodes_child": ("it has child graphs", "capture or add their nodes themselves"),
    "nodes_host": ("it calls functions of the host", "call them outside of the graph"),
    "nodes_other": ("it has nodes other than kernels, copies and memsets", "make it without them"),
    "nodes_device": ("it can be launched from the device", "make it without the flag for device launches"),
    "nodes_changed": ("the program changed one of its nodes, which could not be repeated", _REBUILD),
    "nodes_refused": ("the driver refused a copy of it with events", "nothing: its own call went through"),
    # Nodes with probes
    "node_refused": ("the driver refused its node with probes", _KEEP),
    "node_context": ("its node belongs to another context than the graph", "use one context in a graph"),
    "node_updatable": ("the device may change its node", "make the node without the attribute for device updates"),
    "node_parameters": (
        "the driver does not give back the parameters of its node",
        "pass kernelParams in place of packed parameters",
    ),
    "node_unknown": ("the driver does not say which kernel its node launches", "install a newer driver"),
    "writes_constant": (
        "its graph writes a constant, of which the kernel with probes has a copy",
        "write constants outside of the graph",
    ),
    "may_write_constant": (
        "its graph may later write a constant, of which the kernel with probes has a copy",
        "keep nodes that copy or set memory out of child and conditional graphs",
    ),
    # Saved data that is missing
    "not_read": ("it was not read before the process ended", "end the program by exit, not by a signal or _exit"),
    "stream_destroyed": (
        "its stream was destroyed while it was captured",
        "destroy a stream after its capture has ended",
    ),
    "device_failed": ("the device failed", "the program's own calls say how"),
    "not_saved": ("--benchmark saves no buffers", "run without --benchmark to save it"),
    "side_file": ("the file next to the trace cannot be written", "make room on the disk of the trace"),
    "max_disk": (
        "--max-disk was reached",
        "use a larger --max-disk, or probe fewer launches with --launch-count or --sample",
    ),
    OTHER: ("another reason", "gpt-hook(1), KERNELS WITHOUT PROBES, has more"),
}
# Texts for codes in earlier versions. Old traces and folders have these instead of the codes.
FORMER = {
    "its graph was set of a node inside of a conditional one": "graph_conditional",
    "it was linked, and not of one PTX module": "linked",
    "where its code comes from is not known": "unknown_source",
    "it was found without its name, or is still being made": "not_ready",
    "the pipeline made nothing of it": "pipeline_empty",
    "its variables are used in a way that gpt-ptx-probe cannot follow": "variables",
    "its variables are used in a way that is not understood": "variables",
    "its instructions do not tell where it goes on": "unbounded",
    "it does not begin as kernels that ptxas makes begin": "unknown_entry",
    "its device is not known": "no_device",
    "the driver does not load it with probes": "load_refused",
    "the driver does not find it with probes": "not_found",
    "a variable of it is not found": "variable_missing",
    "the pipeline tells other parameters than the kernel has": "other_parameters",
    "what the program sets of it cannot be set with probes": "property",
    "its occupancy was asked for, and is lower with probes": "occupancy",
    "it was not there with probes in this context yet": "not_here",
    "its stream was not seen to be made": "stream_unknown",
    "its parameters are not passed as the kernel has them": "parameters",
    "no clear buffer was there for a launch that depends on its predecessor": "dependent_buffer",
    "it is launched by a function that CUDA has given up": "old_launch",
    "the device takes no buffers": "device_buffers",
    "its stream takes no event or copy": "stream_events",
    "other graphs have the buffers that there are within --max-memory": "graph_buffers",
    "its graph was made before these probes were named": "graph_early",
    "it was changed too often to buffers that are larger": "graph_outgrown",
    "its graph writes a constant of which it has a copy": "writes_constant",
    "its graph may come to write a constant of which it has a copy": "may_write_constant",
    "its graph writes a constant that the kernel with probes has a copy of": "writes_constant",
    "its graph may come to write a constant that the kernel with probes has a copy of": "may_write_constant",
    "it is a library of NVIDIA's whose code is closed": "closed_library",
    "the instruction table of its architecture lacks one of its instructions": "unknown_opcode",
}
# Beginnings of sentences in old traces -> codes. The rest of the sentence is the detail.
EARLIER = {
    "with probes a block": "registers",
    "its stream is": "stream_context",
    "its node is": "node_context",
    "a graph inside of it": "graph_unknown",
    "it is woven already": "woven",
    "PTX ": "old_ptx",
    "it needs function": "undefined",
    "probes in function": "function",
    "its file cannot be read": "image_unreadable",
    "its file is not whole": "image_unreadable",
    "its variable": "variable_missing",
    "gpt-hook's supervisor": "supervisor",
    "gpt-hook has no supervisor": "no_supervisor",
    "the program closed the connection": "connection_closed",
    "the pipeline tells": "pipeline_wrong",
    "the pipeline writes no stream": "pipeline_wrong",
    "--benchmark: ": "benchmark",
    "its stream takes no event": "stream_events",
    "a node of its graph was changed after an update": "graph_changed",
}


class Reason(NamedTuple):
    """A code, from TABLE or from a newer version, with a detail about this case."""

    code: str
    detail: str = ""

    def __str__(self) -> str:
        if self.code == OTHER and self.detail:
            return self.detail
        text = TABLE[self.code][0] if self.code in TABLE else self.code
        return f"{text}: {self.detail}" if self.detail else text

    def keys(self) -> dict[str, str]:
        """Return the keys of a record with this reason."""
        return {"code": self.code, "detail": self.detail} if self.detail else {"code": self.code}

    @property
    def advice(self) -> str:
        """Return advice to print after the text. It may be empty."""
        text, advice = TABLE.get(self.code, ("", ""))
        return f"{text}: {advice}" if advice and self.code != OTHER else ""


def find_reason(record: Mapping[str, Any]) -> Reason | None:
    """Return the reason in an `unprobed` or `kernel` record of any version, or None."""
    if "code" in record:
        return Reason(record["code"], record.get("detail", ""))
    return parse(record["reason"]) if "reason" in record else None


def parse(text: str) -> Reason:
    """Return the reason for a code, a printed reason, or a sentence of an earlier version."""
    if text in TABLE:
        return Reason(text)
    for code, start in [*((code, start) for code, (start, _) in TABLE.items()), *((c, s) for s, c in FORMER.items())]:
        if text == start:
            return Reason(code)
        if text.startswith(start + ": "):
            return Reason(code, text[len(start) + 2 :])
    for start, code in EARLIER.items():
        if text.startswith(start):
            return Reason(code, "" if text == start else text)
    return Reason(OTHER, text)
