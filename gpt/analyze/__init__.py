"""Answers from traces, one file an analysis; gpt/stages/analyze.py names them."""
