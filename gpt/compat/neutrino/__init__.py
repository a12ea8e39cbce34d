"""Write trace folders in the format of Neutrino's first generation from gpt-hook's recordings, and read both.

command.py   turns a run of gpt-neutrino into a command line of gpt-hook
keeper.py    the last stage of its pipeline, which keeps the code of each kernel
writer.py    the reader of its live stream, which writes a folder for each process
folder.py    one such folder; events.py, kernels.py, results.py, reader.py: its contents
traces/      the readers of Neutrino's own folders, which need none of the above
python/      the package `neutrino` that programs and analyses import
"""
