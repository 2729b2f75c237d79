"""Configuration to numbers: child processes, duets, memory, fidelity."""
