"""Analyses of traces, one per file; gpt/stages/analyze.py lists them."""
