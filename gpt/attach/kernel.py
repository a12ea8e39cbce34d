"""Choose functions of NVIDIA's kernel modules for kprobes: entry points for programs, and functions called when the GPU
reports something.

The names come from the open modules, releases 515 to 580. The alternatives in a tuple call each other, so only the
first that exists in this kernel is used. Inlined or stripped functions aren't in /proc/kallsyms, and can't be watched.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpt.base.errors import MissingError

MODULES = ("nvidia", "nvidia_uvm")
WANTED = (  # the first of each tuple that exists
    ("nvidia_unlocked_ioctl", "nvidia_ioctl"),
    ("uvm_unlocked_ioctl_entry", "uvm_unlocked_ioctl", "uvm_ioctl"),
    ("nvidia_isr_msix",),
    ("nvidia_isr",),
    ("nvidia_isr_kthread_bh",),
    ("nvidia_isr_msix_kthread_bh",),
    ("nvidia_isr_bh_unlocked",),
    ("rm_execute_work_item",),
    ("uvm_isr_top_half_entry",),
    ("uvm_parent_gpu_service_replayable_faults", "uvm_gpu_service_replayable_faults"),
)
IOCTLS = {"nvidia_unlocked_ioctl": "/dev/nvidia", "nvidia_ioctl": "/dev/nvidia"} | dict.fromkeys(
    ("uvm_unlocked_ioctl_entry", "uvm_unlocked_ioctl", "uvm_ioctl"), "/dev/nvidia-uvm"
)
ESCAPES = {0x29: "NV_ESC_RM_FREE", 0x2A: "NV_ESC_RM_CONTROL", 0x2B: "NV_ESC_RM_ALLOC"}  # by ioctl number


def find_functions(symbols: Path = Path("/proc/kallsyms")) -> list[str]:
    """Return the functions of this kernel to watch. Raises MissingError if it has none of them."""
    found = re.findall(r"^[0-9a-f]+ [tT] (\S+)\t\[(\w+)\]$", symbols.read_text(), re.M)
    has = {name for name, module in found if module in MODULES}
    chosen = [next((name for name in names if name in has), None) for names in WANTED]
    if not any(chosen):
        raise MissingError(
            "the modules nvidia and nvidia_uvm are not loaded, or have none of their functions", "--kernel"
        )
    return [name for name in chosen if name]


def probes(names: list[str], tag: str, when: str = "") -> list[str]:
    """Return probes that print a `kernel` line for each call. For an ioctl, it has the number, and words of the
    argument.

    `tag` is the tag of the program, and `when` a predicate for all probes.
    """
    lines = []
    for number, name in enumerate(names):
        ioctl = name in IOCTLS
        kept = "arg1, (uint64)*(uint32 *)uptr(arg2 + 8), (uint64)*(uint32 *)uptr(arg2 + 12)" if ioctl else "0, 0, 0"
        kept = ", ".join(f"(uint64){word.removeprefix('(uint64)')}" for word in kept.split(", "))
        fields, shown = (" request=%llx command=%llx class=%llx", ", $k.1, $k.2, $k.3") if ioctl else ("", "")
        place = f"@kernel[tid, {number}]"
        lines += [
            f"kprobe:{name} {when}{{ {place} = (nsecs, {kept}); }}",
            f"kretprobe:{name} /{place}.0/ {{",
            f"  $k = {place}; delete({place});",
            f'  printf("kernel {tag} %d %d %llu %llu %lld {name}{fields}\\n",',
            f"         pid, tid, $k.0, nsecs - $k.0, retval{shown});",
            "}",
        ]
    return lines


def name_request(request: int, fields: dict[str, int]) -> tuple[str, int | None]:
    """Return the name of an ioctl, and the command of a control or the class of an allocation."""
    name = ESCAPES.get(request & 0xFF) if request >> 8 & 0xFF == ord("F") else None
    command = {"NV_ESC_RM_CONTROL": "command", "NV_ESC_RM_ALLOC": "class"}.get(name or "")
    return name or f"{request:#x}", fields.get(command) if command else None
