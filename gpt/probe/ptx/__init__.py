"""The back end for PTX: from a plan to woven PTX.

    weave.weave(module, kernel, files) -> Woven
                                               the kernel of a pruned module with the probes of some files

function.py has a module's functions as the plan wants them, with faces by template.py. weave.py places what
gpt/probe/lower makes of the snippets, by inserting lines (edits.py). calls.py and state.py reach probes in device
functions, variables.py the variables of the module; params.py adds parameters.
"""
