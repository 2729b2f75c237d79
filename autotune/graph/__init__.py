"""Model to model: what makes the file that a configuration runs."""
