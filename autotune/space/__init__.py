"""What may be tried: parameters, their values and conditions, configurations, space files.

It may import errors, deploy, facts and graph.
"""
