"""Mutated files for every reader of files that others made (scripts/lab/fuzz/run.py)."""
