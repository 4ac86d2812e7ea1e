"""Megalith as a Python package: the program, its configurations and its pages. `python -m megalith` is `megalith`."""
