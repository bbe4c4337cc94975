"""Mutated files for every reader of files that others made (scripts/bench_fuzz.py)."""
