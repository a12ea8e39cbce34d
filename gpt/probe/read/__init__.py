"""Read all forms of probe files into one model (gpt/probe/model.py): TOML of either generation, and Python."""
