"""What a model is, what holds it back on this machine, and where the time of a run goes."""
