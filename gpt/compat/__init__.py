"""Read and write the files of other people's tools, and offer their command lines.

Importing this registers every format that GPT reads as a trace or as a list of used code (gpt/trace/inputs.py has the
table). The stages import it; nothing in the core does. To add a format, write a FORMAT in a separate file, and name it
here.
"""

from gpt.compat import negativa, tracers
from gpt.compat.neutrino import traces
from gpt.trace.inputs import register

register(traces.FORMAT, tracers.FORMAT, negativa.FORMAT)
