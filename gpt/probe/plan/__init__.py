"""Plan the weaving of probes into a kernel, for any instruction set.

    function.Function                          a function of the program, which a back end derives its own from
    plan.Plan(kernel, functions, files, ..)    the probes' snippets at their sites, the maps in use, what to report
    plan.settle(lower)                         has all of it lowered, until what doesn't fit is dropped
    maps.PlacedMap                             a map, and the parameter that passes its buffer's address
    woven.Woven                                the result, and its `map` and `kernel` records
    stream.Weaving                             the stage: which kernels, their records, what to warn of

A site is the number of a statement; what a statement looks like, the plan doesn't know. It asks the back end for an
instruction's face (gpt/probe/face.py), the PTX instruction that the probe is shown there. The plan decides that a
snippet goes there, and the back end how. gpt-probe(5), BACK ENDS, says what a back end consists of; gpt/probe/lower
makes PTX of a snippet's body, which gpt/probe/ptx places into a module.
"""
