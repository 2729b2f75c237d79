"""The command line: the only room that prints.

It may import errors, deploy, export, process, runtimes, facts, graph, space, measure,
inspection, search, storage, results, study, applications and report.
"""
