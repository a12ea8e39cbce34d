"""What Neutrino left: its trace folders, results and `.dmat` files, of both generations, as records of a trace.

Nothing in a folder is executed, neither the generated reader nor a pickle, and no link in it is followed.
"""
