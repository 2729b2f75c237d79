"""Views of results as text, page and data. This room returns what to print, and never prints.

It may import errors, deploy, export, process, runtimes, facts, space, measure, inspection,
search, storage, results, study and applications.
"""
