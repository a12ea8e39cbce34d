"""JSON lines of calls, as eBPF tracers write them, and as GPT's own `events --json` does."""
