"""How tests compile: they compile more than they compute."""

# The fusions of XLA's CPU compiler go through MLIR, whose passes take about half of the time of a training step's compilation.
CHEAP = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
