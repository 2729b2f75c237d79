"""How long measurements wait for a quiet machine, by what waiting brought before."""

# Four seconds, halved so often, are an eighth of a second.
_MOST_HALVINGS = 5


class Patience:
    """Halves where waiting was in vain, and doubles again where the machine was quiet.

    On a machine that is loud all day every measurement would wait to the end, for nothing.
    """

    def __init__(self) -> None:
        self._halvings = 0

    def of(self, patience_s: float) -> float:
        """Returns how long to wait now, in s, where `patience_s` is right on a quiet machine."""
        return patience_s * 0.5**self._halvings

    def learn(self, *, is_quiet: bool) -> None:
        """Takes what a measurement found that was quiet, or waited to the end and was not."""
        change = -1 if is_quiet else 1
        self._halvings = min(max(self._halvings + change, 0), _MOST_HALVINGS)
