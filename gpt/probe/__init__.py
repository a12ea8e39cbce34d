"""Probes: parse probe files, verify them, and resolve their positions and helpers in a program.

    read.load.find_probe(name) -> Path              what -p names: a file, or a built-in probe
    read.load.load_probes(path) -> ProbeFile   TOML of either generation (toml.py) or Python (python.py)
    verify.verify(file)                        proves every probe harmless, or raises with file and line

The objects are in model.py: a ProbeFile has probes, maps and registers; a Probe has positions, a level and the snippets
`before` and `after`; a Snippet is a list of Lines, each a PTX instruction or label (gpt.ptx.tree) or a Save, with its
line in the file. gpt/probe/plan then places the snippets, gpt/probe/lower turns their bodies into PTX, and a back end
such as gpt/probe/ptx weaves it in. These use:

    positions.matches(position, head) -> bool  whether a position means an instruction
    face.Face                                  the PTX instruction that a probe is shown there, and
    operands.bind(instruction) -> Bound        its operands as helpers: out, ins, type, bits, address, space, bytes,
                                               flops; None where the instruction doesn't have them
    verify.find_misfit(probe, bound) -> str    why the probe can't run there (the site is left alone), or None
    effects                                    what a file's snippets do with its registers

In a snippet, a helper is an operand like any other, tree.Name("ADDR"); model.HELPERS has its type. A register declared
in the file keeps its name in the model, and the weaver makes it unique in the program. Each thread of a probed kernel
has its own copy of all of the file's registers; they start as Register.initial, or undefined.
"""
