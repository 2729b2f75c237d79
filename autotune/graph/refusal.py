"""How a step of the graph half says that it is not for this model."""


class StepRefusedError(Exception):
    """A step cannot be applied to this model; the text says why, for the user to read."""
