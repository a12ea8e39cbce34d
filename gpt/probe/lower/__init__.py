"""Turn the body of a snippet into PTX, given a face, the names of registers, and the addresses of maps. No module is
needed.

    Lowering(Fetcher(..), ..).run()            the lines to put before the instruction, and the snippet's own

The input is a PlacedSnippet (gpt/probe/plan). fetch.py fetches the values that the snippet reads, save.py lowers SAVE,
and snippet.py does the rest. emit.py collects the PTX for one place, and registers.py names the registers that a probe
declares.
"""
