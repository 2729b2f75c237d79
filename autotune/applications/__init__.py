"""Whole applications: what they run is recorded, tuned together, and run tuned unchanged.

It may import errors, deploy, process, facts, graph, space, measure, search, storage, results
and study.
"""
