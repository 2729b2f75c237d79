"""A tuned config in other forms: for other servers, other languages, and without autotune.

It may import errors and deploy.
"""
