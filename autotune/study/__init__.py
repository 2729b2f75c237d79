"""A whole study: its options, resolved; Optuna's loop and one trial of it; the end; resume.

It may import errors, deploy, process, runtimes, facts, graph, space, measure, search, storage
and results.
"""
