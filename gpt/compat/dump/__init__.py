"""Run the callbacks of Neutrino's probes on launches of a live stream: gpt-dump."""
