"""The systems that scripts.bench_peers compares, each a process that trains on demand. Here and in PyTorch's and MaxText's
environments alike: of the zoo's code only shardzoo.py knows anything."""
