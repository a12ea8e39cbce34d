"""Every form of probe file, TOML of either generation or Python, to the one model (gpt/probe/model.py)."""
