"""Watching processes that already run, by bpftrace: the program, how it runs, and what is made of its output."""
