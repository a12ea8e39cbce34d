"""Read and write the files of other people's tools, and stand in for their programs.

Importing this registers every format that GPT reads as a trace, or as what a run used (gpt/trace/inputs.py has the
table). The stages import it, nothing in the core does. A new format is a FORMAT in a file of its own, and a word here.
"""

from gpt.compat import negativa, tracers
from gpt.compat.neutrino import traces
from gpt.trace.inputs import register

register(traces.FORMAT, tracers.FORMAT, negativa.FORMAT)
