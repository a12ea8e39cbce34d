"""Trace folders as Neutrino's first generation leaves them, of what gpt-hook records.

command.py   the command line of gpt-hook that a run of gpt-neutrino becomes
keeper.py    the last stage of its pipeline, which keeps the code that was made of each kernel
writer.py    the reader of its live stream, which writes a folder for each process
folder.py    one such folder; events.py, kernels.py, results.py, reader.py: what is in it
traces/      the readers of what Neutrino left, which need none of the above
python/      the package `neutrino` that programs and analyses import
"""
