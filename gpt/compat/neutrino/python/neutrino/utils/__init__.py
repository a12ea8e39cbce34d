"""Helpers for programs that are traced."""
