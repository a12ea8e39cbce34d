"""A snippet's body as PTX, given a face, names of registers and addresses of maps; no module is needed.

    Lowering(Fetcher(..), ..).run()            lines to put before the instruction, and the snippet's own

It takes a PlacedSnippet (gpt/probe/plan). What it reads is fetched by fetch.py, SAVE is lowered by save.py, snippet.py
does the rest; emit.py collects the PTX of one place, and registers.py names the registers that a probe declares.
"""
