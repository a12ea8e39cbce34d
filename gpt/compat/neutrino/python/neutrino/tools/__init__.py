"""The built-in probes, as files, each with its analysis."""
