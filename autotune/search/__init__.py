"""Which configuration next: objectives, Pareto front, the sampler, and the context of a study.

It may import errors, deploy, facts, graph, space and measure.
"""
