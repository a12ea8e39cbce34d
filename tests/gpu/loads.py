"""Load PTX that no driver can compile, and compare status codes and error logs.

`python tests/gpu/loads.py` prints them for the installed driver, real or simulated, and compares the status codes with
the simulated device's (tests/runtime/test_sim_load.py). In cuLinkAddData, a real driver may report an error
earlier than the simulated device, which checks linked code as a whole.
"""

from __future__ import annotations

import sys
from ctypes import addressof, byref, c_int, c_size_t, c_void_p, create_string_buffer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.runtime.driving import begin, cu, ok

KERNEL = ".visible .entry k()\n{\n    .reg .b32 %r<2>;\n    .reg .b64 %d<2>;\n    REST\n    ret;\n}\n"
CASES = {  # name -> version, target, body of the kernel, expected status
    "good": ("7.0", "sm_70", "", 0),
    "unknown instruction": ("7.0", "sm_70", "frob.b32 %r1, 5;", 218),
    "register of another size": ("7.0", "sm_70", "add.u32 %r1, %r1, %d1;", 218),
    "function that is not there": ("7.0", "sm_70", "call nowhere;", 218),
    "target above the device": ("8.8", "sm_100", "", 218),
    "target of this device only": ("8.0", "sm_90a", "", 0),
    "version above CUDA's": ("99.0", "sm_70", "", 222),
}


def load(text: str) -> tuple[int, int, str]:
    """Return the status codes of cuModuleLoadDataEx and of a link, and the log of the former."""
    log, data = create_string_buffer(2000), text.encode() + b"\0"
    kinds, values = (c_int * 2)(5, 6), (c_void_p * 2)(addressof(log), 2000)
    status = cu.cuModuleLoadDataEx(byref(c_void_p()), data, 2, kinds, values)
    state, image = c_void_p(), c_void_p()
    ok(cu.cuLinkCreate_v2(0, None, None, byref(state)))
    linked = cu.cuLinkAddData_v2(state, 1, data, c_size_t(len(data)), None, 0, None, None)
    linked = linked or cu.cuLinkComplete(state, byref(image), None)
    ok(cu.cuLinkDestroy(state))
    return status, linked, log.value.decode(errors="replace")


def main() -> int:
    """Run all cases; return 1 if a status code differs."""
    begin()
    differ = 0
    for name, (version, target, rest, wanted) in CASES.items():
        head = f".version {version}\n.target {target}\n.address_size 64\n"
        declared = ".extern .func nowhere();\n" if "nowhere" in rest else ""
        status, linked, log = load(head + declared + KERNEL.replace("REST", rest))
        differ += status != wanted
        same = "ok " if status == wanted else "NOT"
        print(f"{same} {name:28} {status:4} {linked:4}  {' / '.join(log.splitlines())[:150]}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
