"""Tables and figures of the papers, each as a function that computes it anew: a module for each line of papers.

`scripts.reproduce` finds them by the names of their modules and functions: gshard.table_1 is `table_1` of gshard.py.
"""
