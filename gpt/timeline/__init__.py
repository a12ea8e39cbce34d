"""Timelines: traces as rows of spans, and each form that they are drawn in."""
