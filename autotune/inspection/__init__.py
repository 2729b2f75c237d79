"""What a model is, what holds it back on this machine, and where the time of a run goes.

It may import errors, deploy, process, facts, graph, space and measure.
"""
