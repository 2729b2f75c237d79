"""Configuration to numbers: duets in child processes, memory, and whether answers are right.

It may import errors, deploy, process, runtimes, facts, graph and space.
"""
