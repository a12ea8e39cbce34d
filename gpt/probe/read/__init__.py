"""Read every form of probe file, TOML of either generation or Python, into one model (gpt/probe/model.py)."""
