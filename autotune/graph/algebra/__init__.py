"""Exact algebra: what exporters write out becomes the operators that runtimes have kernels for."""
