"""Run a kernel that `gpt-asm --arch host` compiled in a single thread: thread.c, without the simulated device.

The only parameter of such a kernel is the address of a buffer.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpt.asm.backend import Options
from gpt.asm.host.backend import Host, HostTarget
from tests import cuda

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
ROOT = Path(__file__).parents[3]


def kernel(body: str, module: str = "") -> str:
    """Return a module with the kernel `k`, whose buffer is at %p, with registers of each type."""
    return f"""{HEAD}{module}
.visible .entry k(.param .u64 buffer) {{
    .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %d<32>; .reg .f32 %f<8>; .reg .b128 %q<4>;
    .reg .b64 %p;
    ld.param.u64 %p, [buffer];
{body}
    ret;
}}
"""


class Thread:
    """The program, and the compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = folder / "thread"
        self._host = Host(Options())
        source = Path(__file__).with_suffix(".c")

        def build() -> bytes:
            cuda.c_compiler("-D_GNU_SOURCE", f"-I{ROOT}/runtime", source, "-o", self._program)
            return self._program.read_bytes()

        self._program.write_bytes(cuda.keep((source.name, source.read_bytes()), build))
        self._program.chmod(0o755)

    def run(self, text: str, data: bytes = b"", name: str = "k") -> bytes:
        """Run a kernel on a buffer, and return the buffer. Raises RuntimeError with the fault."""
        image = self._folder / "module.so"
        image.write_bytes(self._host.make(text.encode(), "m", HostTarget()).image)
        done = subprocess.run([self._program, image, name], input=data, capture_output=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(done.stderr.decode().strip() or str(done.returncode))
        return done.stdout
