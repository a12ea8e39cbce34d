"""The back end for PTX: turns a plan into woven PTX.

    weave.weave(module, kernel, files) -> Woven
                                               the kernel of a pruned module, with the probes of some files

function.py presents a module's functions to the plan, with faces from template.py. weave.py inserts (edits.py) what
gpt/probe/lower makes of the snippets. calls.py and state.py reach probes in device functions, variables.py the module's
variables; params.py adds parameters.
"""
