"""The result of a study: what it derives from its members."""

from dataclasses import replace

from made_results import member, result

from autotune.deploy.options import Value
from autotune.results.result import Member

_INT8: dict[str, Value] = {"precision": "int8_static"}
_ARENA: dict[str, Value] = {"arena": "off"}
_WEIGHTS: dict[str, Value] = {"precision": "int8_weight_only"}


def test_the_best_of_each_kind_of_answers() -> None:
    int8, arena = member(2, _INT8, 1.8, error=0.01), member(1, _ARENA, 1.1)
    beyond = member(3, _WEIGHTS, 2.3, error=0.09, admitted=False)
    study = result(int8, others=(arena, beyond))
    assert study.kinds == {"exact": arena, "within": int8, "beyond": beyond}
    slow = result(member(2, _INT8, 1.05, error=0.01), others=(arena,))
    assert study.kinds.keys() - slow.kinds.keys() == {"within", "beyond"}


def test_a_metric_says_which_answers_are_beyond_the_limit() -> None:

    def judged(made: Member, metric: float) -> Member:
        return replace(made, admitted=False, evidence=replace(made.evidence, metric=metric))

    default = judged(member(0, {}), 0.9)
    limits = {**result().limits, "max_error": None, "max_drop": 0.01}
    for metric, answers in ((0.8, "beyond"), (0.895, "within")):
        other = judged(member(1, _INT8, 2.0, error=0.3), metric)
        study = result(limits=limits, members=(default,), others=(other,))
        assert study.kinds == {"exact": default, answers: other}
