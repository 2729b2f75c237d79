"""How long measurements wait, after what waiting brought."""

from autotune.measure.patience import Patience


def test_waiting_in_vain_halves_the_patience() -> None:
    """On a machine that is loud all day it falls to an eighth of a second, and no further."""
    patience = Patience()
    waits = []
    for _ in range(7):
        waits.append(patience.of(4.0))
        patience.learn(is_quiet=False)
    assert waits == [4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.125]


def test_a_quiet_machine_restores_it() -> None:
    """Step by step: a single quiet measurement is no quiet machine."""
    patience = Patience()
    for _ in range(10):
        patience.learn(is_quiet=False)
    patience.learn(is_quiet=True)
    assert patience.of(4.0) == 0.25
    for _ in range(10):
        patience.learn(is_quiet=True)
    assert patience.of(4.0) == 4.0
