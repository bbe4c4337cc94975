"""The systems that scripts.lab.peers.compare compares, each a process that trains on demand. These modules run in
the environments of PyTorch and MaxText too, so only shardzoo.py imports the zoo's code."""
