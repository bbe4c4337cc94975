"""Training steps compiled by XLA's GPU compiler for GPUs that are not there."""
