"""Candidate to numbers: child processes, duets, memory, fidelity."""
