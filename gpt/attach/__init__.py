"""Watch running processes with bpftrace: write the program, run it, and turn its output into a trace."""
