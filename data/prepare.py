"""Prepared caches by name: what `scripts.prepare_data` makes and `data.batches` reads.

A cache is a folder <data>/caches/NAME: `train/PART.array_record` with packed rows, a `SPLIT.jsonl` of raw examples for each
held-out split, the vocabularies, and `manifest.json`. It is reused while what it was made from is the same.
"""
