"""What comes out of a study: final comparison, selection, leave-one-out, the files, `compare`.

It may import errors, deploy, process, runtimes, facts, graph, space, measure, inspection and
search.
"""
