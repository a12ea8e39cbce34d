"""Timelines: traces as rows of spans, and the formats in which they're drawn."""
