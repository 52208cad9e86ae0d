"""Fuzzing of every decoder of bytes that come from outside; `python -m fuzz` runs it."""
