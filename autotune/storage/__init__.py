"""Where Optuna's study lies: SQLite, a server or a proxy; its identity, its locks.

It may import errors, deploy, process, facts, space and search.
"""
