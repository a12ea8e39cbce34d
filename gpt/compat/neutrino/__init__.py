"""Write trace folders in the format of Neutrino's first generation from recordings of gpt-hook, and read the folders of
both generations.

    command.py   converts a run of gpt-neutrino to a command line of gpt-hook
    keeper.py    the last stage of its pipeline, which keeps the code of each kernel
    writer.py    reads its live stream, and writes a folder for each process
    folder.py    one such folder; events.py, kernels.py, results.py, reader.py: its contents
    traces/      reads Neutrino's own folders, without the files above
    python/      the package `neutrino` that programs and analyses import
"""
