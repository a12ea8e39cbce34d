"""Plan the weaving of probes into a kernel, for any instruction set.

    function.Function                          a function of the program, which a back end derives its own from
    plan.Plan(kernel, functions, files, ..)    the probes' snippets at their sites, the maps in use, messages
    plan.settle(lower)                         lowers all of it, and drops what doesn't fit
    maps.PlacedMap                             a map, and the parameter that passes its buffer's address
    woven.Woven                                the result, and its `map` and `kernel` records
    stream.Weaving                             the stage: which kernels, their records, what to warn of

A site is the number of a statement; the plan doesn't know what statements look like. It asks the back end for an
instruction's face (gpt/probe/face.py), the PTX instruction that the probe sees there. The plan decides where snippets
go, the back end how. gpt-probe(5), BACK ENDS, says what a back end consists of. gpt/probe/lower turns a snippet's body
into PTX, which gpt/probe/ptx inserts into a module.
"""
