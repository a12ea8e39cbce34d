"""What a program did, as arrays: the traces that gpt-hook writes."""
