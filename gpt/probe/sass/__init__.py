"""Weave probes into machine code, for kernels that come without PTX, and explain where probes can go.

    weave(cubin, name, arch, files, compiler)       weave probes into one kernel, and prove the result (weave.py)

The way from a probe to machine words: function.py presents the kernel's instructions as PTX; body.py lowers a snippet
to a PTX function, which snippets.py compiles (compiled.py); values.py determines which values snippets keep;
registers.py, given.py, trampoline.py and draft.py write the words into the kernel, with instructions from glue.py
around them; shared.py lets the kernel use the program's variables.
"""
