"""Weave probes into machine code, for kernels that come without PTX, and explain where they can go.

    weave(cubin, name, arch, files, compiler)       one kernel with probes, proven (weave.py)

The parts, from a probe to words: function.py shows the kernel's instructions as PTX; body.py lowers a snippet to a PTX
function, which snippets.py compiles; values.py says what snippets keep; registers.py, trampoline.py and draft.py write
its words into the kernel, with the instructions of glue.py around them.
"""
