"""Read and write the files of other people's tools, and provide their command lines.

Importing this registers all formats that GPT can read as a trace or as a list of used code (the table is in
gpt/trace/inputs.py). The stages import it, but nothing else does. To add a format, write a FORMAT in a file of its own,
and name it here.
"""

from gpt.compat import negativa, tracers
from gpt.compat.neutrino import traces
from gpt.trace.inputs import register

register(traces.FORMAT, tracers.FORMAT, negativa.FORMAT)
