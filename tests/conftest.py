"""What tests of several modules of the search begin with."""

from collections.abc import Iterator

import optuna
import pytest

from autotune.storage.database import quiet_optuna


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keeps Optuna's notes on what is experimental out of the tests."""
    with quiet_optuna():
        yield


@pytest.fixture
def study() -> optuna.Study:
    """A new study in memory."""
    return optuna.create_study(directions=["minimize", "minimize"])
