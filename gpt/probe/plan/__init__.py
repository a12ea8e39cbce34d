"""Plan where probes are woven into a kernel, for any instruction set.

    function.Function                          the base class for a back end's functions of the program
    plan.Plan(kernel, functions, files, ..)    the snippets of probes at their sites, the maps in use, messages
    plan.settle(lower)                         lowers all of it, and drops what doesn't fit
    maps.PlacedMap                             a map, and the parameter that passes the address of its buffer
    woven.Woven                                the result, and its `map` and `kernel` records
    stream.Weaving                             the stage: which kernels, their records, and what to warn of

A site is the number of a statement; the plan doesn't know what statements look like. It asks the back end for the face
of an instruction (gpt/probe/face.py), which is the PTX instruction that the probe sees. The plan decides where snippets
go, and the back end how they get there. gpt-probe(5), BACK ENDS, describes what a back end consists of. gpt/probe/lower
turns the body of a snippet into PTX, which gpt/probe/ptx inserts into a module.
"""
