"""Probes: the files that say where and what, the verifier, and what a position and a helper mean in a program.

    read.load.find_probe(name) -> Path              what -p names: a file, or a built-in probe
    read.load.load_probes(path) -> ProbeFile   TOML of either generation (toml.py) or Python (python.py)
    verify.verify(file)                        proves every probe harmless, or raises with file and line

The objects are in model.py: a ProbeFile has probes, maps and registers; a Probe has positions, a level and the snippets
`before` and `after`; a Snippet is a list of Lines, each a PTX instruction or label (gpt.ptx.tree) or a Save, with its
line in the file. The weaver (gpt/probe/weave) goes from there:

    positions.find_sites(Body(module, function, statements), probe.positions) -> [Site]
                                               which statements of gpt.ptx.scan.Module.statements(function) are meant,
                                               by their numbers; a statement has its byte span in the module's text
    parse.parse_statements(module.source(statement)) -> [Instruction]
                                               the instruction at a site
    operands.bind(instruction) -> Bound        its operands as helpers: out, ins, type, bits, address, space, bytes,
                                               flops; None if it has no such thing
    verify.find_misfit(probe, bound) -> str    why the probe cannot run there (the site is left alone), or None

A helper stands in a snippet as tree.Name("ADDR"), an operand like any other; model.HELPERS has its type. A register
declared in the file keeps its name, which the weaver makes unique in the program. All of a file's registers exist in
each thread of a probed kernel and begin as Register.initial, or undefined.
"""
