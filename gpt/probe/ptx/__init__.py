"""The back end for PTX. It turns a plan into PTX with probes.

    weave.weave(module, kernel, files) -> Woven    weave the probes of some files into the kernel of a pruned module

function.py presents the functions of a module to the plan, with faces from template.py. weave.py inserts the code that
gpt/probe/lower makes from snippets, with the help of edits.py. calls.py and state.py make device functions accessible
to probes, and variables.py the variables of the module; params.py adds parameters.
"""
