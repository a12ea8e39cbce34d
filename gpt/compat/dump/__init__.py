"""The callbacks of Neutrino's probes, run on launches of a live stream: gpt-dump."""
