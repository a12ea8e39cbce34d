"""A back end for machine code, begun: which sites probes have, and what would be left alone (gpt-sass-probe --explain).

Weaving isn't there yet.
"""
