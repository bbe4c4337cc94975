"""Mutated files for every reader of files that others made (tests/fuzz/run.py)."""
