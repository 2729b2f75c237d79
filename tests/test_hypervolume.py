"""The hypervolume of points."""

import pytest

from autotune.search.hypervolume import hypervolume


@pytest.mark.parametrize(
    ("points", "reference", "volume"),
    [
        ([], (1.0, 1.0), 0.0),
        ([(0.25,), (0.5,)], (1.0,), 0.75),
        ([(0.5, 0.5)], (1.0, 1.0), 0.25),
        ([(0.5, 0.5), (0.6, 0.6)], (1.0, 1.0), 0.25),
        ([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0), 0.75),
        ([(0.0, 0.0, 0.5), (0.5, 0.5, 0.0)], (1.0, 1.0, 1.0), 0.5 + 0.25 * 0.5),
        ([(0.5, 0.5), (0.5, 0.5)], (1.0, 1.0), 0.25),
        ([(2.0, 0.1), (0.1, 1.0)], (1.0, 1.0), 0.0),
    ],
    ids=["none", "line", "one", "dominated", "two", "three objectives", "twice", "outside"],
)
def test_volumes_by_hand(
    points: list[tuple[float, ...]], reference: tuple[float, ...], volume: float
) -> None:
    assert hypervolume(points, reference) == pytest.approx(volume)
