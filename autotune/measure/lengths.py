"""Words of generations that both ends of the channel import."""

STEPS, PROMPTS = "steps", "prompts"
"""The two parts of a generation that are timed, each in a duet of its own."""

TOKENS = "tokens"
"""Name of the array of a window of text."""
