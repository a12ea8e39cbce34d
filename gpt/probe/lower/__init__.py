"""Turn a snippet's body into PTX, given a face, register names and map addresses; no module is needed.

    Lowering(Fetcher(..), ..).run()            lines to put before the instruction, and the snippet's own

The input is a PlacedSnippet (gpt/probe/plan). fetch.py fetches what the snippet reads, save.py lowers SAVE, and
snippet.py does the rest. emit.py collects the PTX for one place, and registers.py names the registers that a probe
declares.
"""
