"""The changes of a candidate from the default, and putting them back."""

import pytest
from fakes import parameter, space
from small_spaces import resolved

from autotune.results.changes import changes_of, is_free, outermost, put_back
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.parameters import PARAMETERS
from autotune.space.session import PROVIDER_OPTIONS
from autotune.space.space import Parameter

_INT8 = Candidate.of(
    {
        "precision": "int8_static",
        "per_channel": True,
        "calibration": "percentile",
        "storage": "external_data",
    }
)


def test_options_of_a_precision_go_with_it() -> None:
    """Without the precision they mean nothing; alone, they are changes as well."""
    within = resolved("quantize", operators={"Conv": 9})
    removed = {frozenset(change.values) for change in changes_of(_INT8, within)}
    assert removed == {
        frozenset({"precision", "per_channel", "calibration"}),
        frozenset({"per_channel"}),
        frozenset({"calibration"}),
        frozenset({"storage"}),
    }


def test_the_outermost_changes_are_no_part_of_others() -> None:
    """Together they are all of the candidate, and none of it twice."""
    outer = outermost(changes_of(_INT8, resolved("quantize", operators={"Conv": 9})))
    names = [name for change in outer for name in change.values]
    assert sorted(names) == sorted(_INT8.to_json())


def test_conditions_of_the_space_decide_what_goes_along() -> None:
    """A thread count of its own exists beside parallel execution alone."""
    within = resolved("session", operators={"Conv": 9})
    parallel = Candidate.of({"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 2})
    assert put_back(parallel, ["execution_mode"], within) == BASELINE
    assert put_back(parallel, ["inter_op_num_threads"], within) == Candidate.of(
        {"execution_mode": "ORT_PARALLEL"}
    )


def test_a_candidate_of_the_users_own_is_put_back_as_well() -> None:
    """The space knows none of its parameters; the options of a precision still go with it."""
    within = space(parameter("arena", "on", "off"))
    assert put_back(_INT8, ["precision"], within) == Candidate.of({"storage": "external_data"})
    assert is_free("precision", within)


def test_options_of_a_provider_go_with_it() -> None:
    """Without it they mean nothing, whether the space knows them or not."""
    option, value = next(
        (name, value)
        for name, (word, _) in PROVIDER_OPTIONS.items()
        for value in PARAMETERS[name].choices
        if word == "cuda" and value != PARAMETERS[name].default
    )
    on_device = Candidate.of({"execution_provider": "cuda", option: value})
    assert len(on_device.values) == 2
    assert put_back(on_device, ["execution_provider"], space()) == BASELINE


@pytest.mark.parametrize(("values", "free"), [((0, 2), True), ((2,), False), ((1, 2), False)])
def test_what_the_user_fixed_is_not_free(values: tuple[int, ...], free: bool) -> None:
    """A space that leaves the default out does not offer to put a parameter back."""
    within = space(Parameter(name="intra_op_num_threads", values=values, default=0))
    assert is_free("intra_op_num_threads", within) is free


def test_a_change_has_words() -> None:
    """They are those of its parameters alone."""
    change = changes_of(Candidate.of({"arena": "off", "nchwc": "off"}), space())[0]
    assert change.words == "no arena"
