"""Limited child processes: both ends of the channel, temporary folders, signals.

It may import errors and deploy.
"""
