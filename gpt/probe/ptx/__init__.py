"""The model to woven PTX.

    weave.weave(module, kernel, files) -> Woven
                                               the kernel of a pruned module with the probes of some files

It matches a kernel's statements (match.py: which snippets go where; template.py: instructions that are alike), lowers
each snippet (lower.py; fetch.py: what it reads of the program; save.py: SAVE; emit.py: the PTX of one place) and
inserts lines (edits.py). calls.py and state.py reach probes in device functions, variables.py the variables of the
module; registers.py names the registers that a probe declares.
"""
