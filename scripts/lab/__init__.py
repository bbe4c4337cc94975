"""Measurements and checks that engineers of the project make: benches, peers, audits."""
