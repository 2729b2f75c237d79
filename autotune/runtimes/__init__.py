"""Environments of other ONNX Runtimes, in the user's cache: made, listed, checked, removed.

It may import errors, deploy and process.
"""
