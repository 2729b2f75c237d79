"""The table of execution providers, and which of them can be used on a machine."""

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.deploy.options import Domain
from autotune.deploy.providers import PROVIDERS, Provider
from autotune.errors import RequestError
from autotune.facts import providers
from autotune.facts.probe import Probe
from autotune.facts.providers import (
    CPU_STATE,
    NO_DEVICE,
    NOT_INSTALLED,
    READY,
    ProviderState,
    choose_providers,
    only_the_cpu,
    provider_states,
)
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.space.parameters import PARAMETERS

_RECORDED = json.loads(
    (Path(__file__).parent / "data" / "provider_options.json").read_text(encoding="utf-8")
)
_OPTIONS = [
    pytest.param(provider, name, domain, id=f"{word}.{name}")
    for word, provider in PROVIDERS.items()
    for name, domain in provider.options.items()
]


@pytest.mark.parametrize(("provider", "name", "domain"), _OPTIONS)
def test_an_option_is_one_of_the_recorded_build(
    provider: Provider, name: str, domain: Domain
) -> None:
    option = _RECORDED[provider.name]["options"][name]
    listed = option["values"]
    assert listed != "path"
    if isinstance(listed, list):
        assert set(domain.choices) <= set(listed)
        assert domain.default == option["default"]


@pytest.mark.parametrize("word", PROVIDERS)
def test_a_cache_folder_is_the_only_path(word: str) -> None:
    provider = PROVIDERS[word]
    recorded = _RECORDED.get(provider.name, {"options": {}})["options"]
    for name, text in provider.cache.items():
        assert name not in provider.options
        assert text in {"1", "{folder}"}
        assert recorded[name]["values"] == ("path" if text == "{folder}" else ["0", "1"])


@pytest.mark.parametrize("word", PROVIDERS)
def test_the_table_names_parameters_that_exist(word: str) -> None:
    provider = PROVIDERS[word]
    assert provider.session_parameters <= PARAMETERS.keys()
    for parameter, values in (
        ("precision", provider.precisions),
        ("pre_pass", provider.pre_passes),
        ("weight_storage", provider.storage_forms),
    ):
        assert set(values) <= set(GRAPH_PARAMETERS[parameter].domain.choices)


def _state(word: str, monkeypatch: pytest.MonkeyPatch, **fakes: Any) -> ProviderState:
    """Returns the state of one provider in a world with these functions."""
    monkeypatch.setattr(providers, "is_built_in", lambda _: fakes.get("built_in", False))
    monkeypatch.setattr(providers, "has_plugin", lambda _: fakes.get("plugin", False))
    monkeypatch.setattr(providers, "_probe", lambda _: fakes["probe"])
    provider_states.cache_clear()
    try:
        return next(state for state in provider_states() if state.word == word)
    finally:
        provider_states.cache_clear()


_STATES = (
    CPU_STATE,
    ProviderState(word="openvino", state=READY),
    ProviderState(word="cuda", state=NO_DEVICE, reason="there is no driver"),
)


def test_a_study_searches_all_that_are_ready() -> None:
    """Without a wish, every provider that can be used takes part; a wish narrows them."""
    assert [state.word for state in choose_providers((), _STATES)] == ["cpu", "openvino"]
    assert [state.word for state in choose_providers(("openvino",), _STATES)] == ["openvino"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("cuda",), r"CUDA cannot be used here \(no device: there is no driver\)"),
        (("openvno",), "'openvno' is none of .*Did you mean 'openvino'"),
        (("cpu", "cpu"), "name each of the providers once"),
    ],
)
def test_a_provider_that_cannot_be_used_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        choose_providers(words, _STATES)


_NOT_INSTALLED = "onnxruntime-openvino or onnxruntime-ep-openvino brings it"


_FAILS = "its library fails (crashed)"


def test_what_the_library_does_not_hold_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("session.disable_prepacking", "session.no_such_key")
    monkeypatch.setattr(providers, "_NAMES", names)
    assert _state("cpu", monkeypatch).unknown_options == names[1:]


@pytest.mark.parametrize(
    ("word", "fakes", "state", "devices", "reason"),
    [
        ("openvino", {}, NOT_INSTALLED, (), _NOT_INSTALLED),
        (
            "openvino",
            {"built_in": True, "probe": Probe(devices=("CPU", "GPU"), problem="")},
            READY,
            ("CPU", "GPU"),
            "",
        ),
        (
            "webgpu",
            {"plugin": True, "probe": Probe(devices=(), problem=_FAILS)},
            NO_DEVICE,
            (),
            _FAILS,
        ),
    ],
    ids=["not installed", "a small model runs", "a library that fails"],
)
def test_the_state_of_a_provider(
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    fakes: dict[str, Any],
    state: str,
    devices: tuple[str, ...],
    reason: str,
) -> None:
    found = _state(word, monkeypatch, **fakes)
    assert (found.state, found.devices, found.reason) == (state, devices, reason)


def test_a_study_on_the_cpu_alone_says_why() -> None:
    """A provider that is installed is expected to run; one that is not was not asked for."""
    sentence = only_the_cpu(_STATES[::2])
    assert sentence == (
        "CUDA cannot be used here, so the study runs on the CPU: there is no driver."
    )
    assert only_the_cpu(_STATES) == ""  # OpenVINO is searched
    assert only_the_cpu((CPU_STATE, ProviderState(word="cuda", state=NOT_INSTALLED))) == ""


def test_the_package_is_the_one_that_python_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several packages of ONNX Runtime may lie on the path, in folders of their own."""
    versions = {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.31.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(providers, "runtime", lambda: SimpleNamespace(version="1.31.1"))
    assert providers._package(PROVIDERS["cpu"]) == "onnxruntime-gpu 1.31.1"
