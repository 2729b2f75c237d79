"""Model to model: what makes the file that a configuration runs, in a child process.

It may import errors, deploy, process, runtimes and facts.
"""
