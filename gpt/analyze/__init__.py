"""Analyses of traces, one file each; gpt/stages/analyze.py lists them."""
