"""Measurements and checks that engineers of the project make: benches, peers, fuzzing, golden dumps, audits."""
