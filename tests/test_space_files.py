"""Search spaces as TOML files."""

from pathlib import Path

import pytest
from small_spaces import resolved

from autotune.deploy.providers import PROVIDERS
from autotune.errors import RequestError, SpaceError
from autotune.space.configuration import Configuration
from autotune.space.files import presets, read_space


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_are_sound(name: str) -> None:
    space = resolved(name, providers=["cpu"] if name not in PROVIDERS else [name])
    assert space.description
    assert space.nearest({}) == Configuration.of(
        {"execution_provider": name} if name in PROVIDERS else {}
    )


def test_a_preset_of_a_provider_needs_it() -> None:
    """A space whose providers cannot be used is refused with what helps."""
    with pytest.raises(RequestError, match=r"for cuda, which cannot be used here.*--space default"):
        resolved("cuda")


def test_all_faults_of_a_file_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        descripton = "x"
        [parameters.arenas]
        values = ["on"]
        [parameters.arena]
        values = ["on", 3]
        default = "off"
        needs = ["convs"]
        [parameters.spinning]
        values = []
        when = { nowhere = 1 }
        [parameters.enable_mem_pattern]
        value = [true]
        default = true
        """,
        encoding="utf-8",
    )
    with pytest.raises(SpaceError) as refused:
        read_space(file)
    message = str(refused.value)
    for part in (
        "unknown key 'descripton'. Did you mean 'description'?",
        "Did you mean 'arena'?",
        "parameters.arena.values: must be one of",
        "parameters.arena.default: must be ONNX Runtime's own, 'on'",
        "Did you mean 'conv'?",
        "parameters.spinning.values",
        "parameters.spinning.default: is missing",
        "parameters.spinning.when.nowhere",
        "parameters.enable_mem_pattern.value: unknown key. Did you mean 'values'?",
    ):
        assert part in message, part


def test_circular_conditions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'parameters.arena = {values=["on"], default="on", when={spinning="on"}}\n'
        'parameters.spinning = {values=["on"], default="on", when={arena="on"}}\n',
        encoding="utf-8",
    )
    with pytest.raises(SpaceError, match="arena, spinning depend on each other"):
        read_space(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 5000, "nested too deeply"),
        ("x" * 70_000, "no TOML"),
        ("description = 0x" + "f" * 5000, "description: must be a string"),
        ('description = "' + "x" * (2 << 20) + '"', "larger than 1 MiB"),
        ("parameters.arena.default = 0x" + "f" * 5000, "a number of thousands of digits"),
        ("\n".join(f"x{i} = 1" for i in range(10_000)), "and 99"),
    ],
    ids=["nested", "name", "description", "large", "number", "many"],
)
def test_a_monstrous_file_is_refused_in_a_few_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpaceError, match=words) as refused:
        read_space(file)
    assert len(str(refused.value)) < 4000


_BATCH = "[parameters.batch]\nvalues = {}\ndefault = {}\n"
_SMALLEST = "parameters.batch.default: must be the smallest of the values, "
_ARENA = "[parameters.arena]\n"
_CLIENTS = 'clients = {}\n[parameters.arena]\nvalues = ["on", "off"]\ndefault = "on"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        # a list where a word is wanted, or a word where a list is
        (f'{_ARENA}values=["on"]\ndefault="on"\nneeds="conv"', "needs: must be a list"),
        (f'{_ARENA}values=["on"]\ndefault="on"\nneeds=[["conv"]]', "needs: ['conv'] is none of"),
        (f'{_ARENA}values=[["on"]]\ndefault="on"', "values: must be one of"),
        # the baseline runs the smallest size
        (_BATCH.format("[2, 4]", 1), f"{_SMALLEST}2"),
        (_BATCH.format("[1, 4]", "true"), f"{_SMALLEST}1"),
        ("[parameters.batch]\nvalues = [1, 4]\n", f"{_SMALLEST}1"),
        (_BATCH.format("[1, 4, 4]", 1), "parameters.batch.values: 4 is there twice"),
        (_BATCH.format("[0, 4]", 0), "parameters.batch.values: must be from 1 to 65536, not 0"),
        (_BATCH.format("[]", 1), "parameters.batch.values: must be a list of at least one value"),
        (_BATCH.format(list(range(1, 18)), 1), "17 sizes are too many"),
        *((_CLIENTS.format(n), "clients: must be") for n in ("0", "257", "2.0", "true", "[2, 4]")),
    ],
)
def test_wrong_values_of_a_file_are_faults(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpaceError) as refused:
        read_space(file)
    assert fault in str(refused.value)
