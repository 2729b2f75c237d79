"""Decoders: what is fed back is found in the graph, and generates the same as without a cache."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import brief_studies
import decoder_models
import numpy as np
import onnx
import onnxruntime
import optuna
import pytest
from onnx import TensorProto, helper, numpy_helper
from views import words_of

import autotune
from autotune.deploy.config import LengthTimes
from autotune.deploy.decoder import CACHE, CROSS, STATE, Port, decoder_of
from autotune.deploy.generation import Generation, generation
from autotune.errors import CannotMeasureError, DataError, ModelError, RequestError
from autotune.facts.feeds import load_samples
from autotune.facts.inputs import Generate, workload_for
from autotune.facts.model import Model, describe
from autotune.facts.prompts import workload_of_prompts
from autotune.facts.workload import Workload
from autotune.inspection.inspect import inspect_model
from autotune.measure import generation as measure_generation
from autotune.measure.answers import Judge, OutputMismatchError, Outputs
from autotune.measure.configuration_run import TimeLimits
from autotune.measure.generation import GenerationRuns
from autotune.measure.held_text import TextJudge, text_set
from autotune.measure.measure_child import Worker
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.memory import Usage
from autotune.measure.outcome import Effort, Failure, Measurement
from autotune.measure.replies import FirstRuns, Opened
from autotune.measure.sample_sets import SampleSet
from autotune.report.inspection import view_inspection
from autotune.report.page.writing import write_report
from autotune.report.result import view_ending
from autotune.search.optuna_trials import read_trials
from autotune.space.configuration import BASELINE, Configuration
from autotune.study.options import StudyOptions
from autotune.study.resolve import resolve_study
from autotune.study.resume import options_to_continue
from autotune.study.seams import Seams

_ENCODER = {"encoder_hidden_states": np.ones((1, 5, decoder_models.WIDTH), np.float32)}
_PAST = {
    f"past_key_values.0.{n}": (1, decoder_models.HEADS, 0, decoder_models.SIZE)
    for n in ("key", "value")
}
_TOKENS = [3, 17, 42, 9, 60, 1, 33, 8, 20, 5]


def _opened(kind: str, folder: Path, **names: Any) -> tuple[Model, Generation]:
    path = decoder_models.write(kind, folder / f"{kind}.onnx", **names)
    model = describe(path)
    assert model.decoder is not None
    others = {name: _ENCODER[name] for name in model.decoder.others}
    return model, Generation(onnxruntime.InferenceSession(path), model.decoder, others)


class OnDevice:
    """A session of the CPU that says it is one of CUDA, and what it binds where.

    Args:
        left: Outputs of nodes that its provider leaves to the CPU.
    """

    def __init__(self, session: onnxruntime.InferenceSession, left: Sequence[str] = ()) -> None:
        self.left = left
        self.bound: dict[str, tuple[str, int]] = {}
        self.waits = 0
        self._session = session
        self._binding: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session if self._binding is None else self._binding, name)

    def get_inputs(self) -> Any:
        return self._session.get_inputs()

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {"CUDAExecutionProvider": {"device_id": "1"}}

    def get_output_memory_infos(self) -> list[Any]:
        names = [output.name for output in self._session.get_outputs()]
        return [SimpleNamespace(name="Cpu" if n in self.left else "Cuda") for n in names]

    def io_binding(self) -> "OnDevice":
        self._binding = self._session.io_binding()
        return self

    def bind_output(self, name: str, device: str, device_id: int = 0) -> None:
        self.bound[name] = device, device_id
        self._binding.bind_output(name, "cpu")

    def run_with_iobinding(self, _: object) -> None:
        self._session.run_with_iobinding(self._binding)

    def synchronize_outputs(self) -> None:
        self.waits += 1


def test_a_cache_that_the_cpu_writes_stays_in_main_memory(tmp_path: Path) -> None:
    """GroupQueryAttention in float has no kernel of CUDA, and would append to a copy there."""
    path = decoder_models.write("gqa", tmp_path / "decoder.onnx")
    plain = onnxruntime.InferenceSession(path)
    caches = [output.name for output in plain.get_outputs() if "present" in output.name]
    session = OnDevice(plain, caches)
    made = generation(session)
    made.start(_TOKENS[:4], 16)
    assert {value.device_name() for value in made._values.values()} == {"cpu"}
    assert caches
    assert {session.bound.get(name, ("cpu", 0)) for name in caches} == {("cpu", 0)}


@pytest.mark.parametrize("kind", ["plain", "gqa", "crossed"])
def test_caches_stay_on_the_device_and_logits_come_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fed back lies on the provider's device; each run ends when the device is done."""
    path = decoder_models.write(kind, tmp_path / "decoder.onnx")
    decoder = describe(path).decoder
    assert decoder is not None
    copied: list[tuple[str, int]] = []
    on_cpu = onnxruntime.OrtValue.ortvalue_from_numpy

    def on_device(array: Any, device: str = "cpu", device_id: int = 0) -> Any:
        copied.append((device, device_id))
        return on_cpu(array)

    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", staticmethod(on_device))
    session = OnDevice(onnxruntime.InferenceSession(path))
    made = Generation(session, decoder, {name: _ENCODER[name] for name in decoder.others})
    rows = [*made.start(_TOKENS[:4], 16).copy(), made.step(_TOKENS[4]).copy()]
    assert set(copied) == {("cuda", 1)}
    assert session.bound.pop(str(decoder.logits)) == ("cpu", 0)
    assert set(session.bound.values()) <= {("cuda", 1)}
    assert session.waits >= 2
    monkeypatch.undo()
    _, plain = _opened(kind, tmp_path)
    np.testing.assert_allclose(np.stack(rows), plain.start(_TOKENS[:5], 16), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", decoder_models.KINDS)
def test_caches_give_what_the_whole_text_gives(kind: str, tmp_path: Path) -> None:
    """Each token's logits are those of the same text read at once."""
    _, made = _opened(kind, tmp_path)
    whole = made.start(_TOKENS, 16).copy()
    rows = [*made.start(_TOKENS[:4], 16).copy(), *(made.step(t).copy() for t in _TOKENS[4:])]
    np.testing.assert_allclose(np.stack(rows), whole, rtol=2e-3, atol=2e-3)
    # another text gives others: the comparison can fail
    assert not np.allclose(made.start(_TOKENS[::-1], 16), whole, atol=0.1)


@pytest.mark.parametrize("kind", decoder_models.KINDS)
def test_nothing_that_is_fed_back_is_copied(kind: str, tmp_path: Path) -> None:
    """A cache stays where it is, or the output of a step is the very input of the next one."""
    _, made = _opened(kind, tmp_path)
    given: list[dict[str, int]] = []
    returned: list[list[int]] = []
    run = made._session.run_with_iobinding

    def look(binding: Any) -> None:
        given.append(made.addresses())
        run(binding)
        returned.append([value.data_ptr() for value in binding.get_outputs()])

    made.start(_TOKENS, 16)
    made._session.run_with_iobinding = look
    for _ in range(3):
        made.step()
    fed = [pair.past for pair in made._decoder.pairs if pair.kind != CROSS]
    for later, outputs in zip(given[1:], returned, strict=False):
        assert {later[name] for name in fed} == set(outputs[1:])
    for pair in made._decoder.pairs:
        if pair.kind == CROSS or made.shares:
            assert len({addresses[pair.past] for addresses in given}) == 1
    assert made.shares == (kind == "gqa")


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("gqa", [CACHE, CACHE]),
        ("plain", [CACHE, CACHE]),
        ("merged", [CACHE, CACHE]),
        ("crossed", [CACHE, CACHE, CROSS, CROSS]),
        ("recurrent", [STATE]),
    ],
)
def test_pairs_are_found_in_the_graph(kind: str, kinds: list[str], tmp_path: Path) -> None:
    """The graph shows the pairs, whatever the exporter calls them."""
    names = {} if kind == "recurrent" else {"past": "alpha", "names": "omega"}
    _, made = _opened(kind, tmp_path, **names)
    decoder = made._decoder
    assert [pair.kind for pair in decoder.pairs] == kinds
    if names:
        assert [pair.present for pair in decoder.pairs[:2]] == ["omega.key", "omega.value"]
    assert decoder.tokens == "input_ids"
    assert decoder.logits == "logits"
    assert decoder.vocabulary == decoder_models.VOCABULARY
    assert decoder.open_shape is None


@pytest.mark.slow
def test_a_study_of_a_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two prompts of different lengths in one study; what it writes generates the same tokens."""
    brief_studies.measure_briefly(monkeypatch.setattr)
    path = decoder_models.write("plain", tmp_path / "plain.onnx")
    result = autotune.tune(
        path,
        trials=2,
        prompt_tokens=(14, 510),
        new_tokens=4,
        prefer="tokens",
        max_error=10.0,
        out=tmp_path / "out",
    )
    assert result.objectives == ("tokens_per_s", "peak_memory_mib")
    evidence = result.best.evidence
    assert evidence.tokens_per_s == pytest.approx(1e3 / evidence.latency_ms)
    assert evidence.ttft_ms is not None
    assert [(item.prompt_tokens, item.context) for item in evidence.lengths] == [
        (14, 16),
        (510, 512),
    ]
    storage = f"sqlite:///{tmp_path / 'out' / 'study.db'}"
    study = optuna.load_study(study_name=result.study, storage=storage)
    trials = [trial.measurement for trial in read_trials(study) if trial.measurement]
    generated = trials[0].generated
    assert generated is not None
    assert [item.prompt_tokens for item in generated.lengths] == [14, 510]
    assert [item.context for item in generated.lengths] == [16, 512]
    assert trials[0].fidelity.perplexity is not None
    page = write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "tokens/s" in page
    ending = words_of(view_ending(result, ""))
    assert f"{evidence.tokens_per_s:.4g}" in ending
    assert "After a prompt of 510 tokens, by the clock" in ending
    for text in (page, ending):
        assert "tokens/s at a context of 512" in text
    # the folder continues the study, with the options that it kept
    again = options_to_continue(str(tmp_path / "out"), model=None, trials=3)
    assert (again.max_error, again.prompt_tokens) == (10.0, (14, 510))
    assert resolve_study(again, Seams()).limits.max_error == 10.0
    session = autotune.load(tmp_path / "out" / "best.json")
    tokens = autotune.generation(session).generate(_TOKENS, 8)
    assert len(tokens) == 8
    if result.picked == 0:
        untouched = autotune.generation(onnxruntime.InferenceSession(path))
        assert tokens == untouched.generate(_TOKENS, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt_tokens": (300,)}, "more than the model's context of 256"),
        ({"prompt_tokens": (0,)}, "--prompt-tokens must be at least 1"),
        ({"prompt_tokens": (10**9,)}, "at most 131072, not 1000000000"),
        ({"generate": "prompts.jsonl", "prompt_tokens": (8,)}, "leave --prompt-tokens out"),
        ({"pairs": {"past": "present.0.key"}}, "it has no input 'past'"),
        ({"pairs": {"past_key_values.0.key": "logits"}}, "does not fit"),
        ({"shapes": {"past": (1, 2, 0, 4)}}, "has no input 'past'"),
        ({"shapes": {"attention_mask": (1, 8)}}, "the prompts give it its sizes"),
        ({"shapes": {"input_ids": (1, 8)}, "new_tokens": 2}, "the prompts give it its sizes"),
        ({"shapes": {"past_key_values.0.key": (1,)}}, "takes rank 4"),
        ({"shapes": {"past_key_values.0.key": (1, 3, 0, 16)}}, "the model takes [batch_size, 2, "),
        ({"shapes": {"past_key_values.0.key": (2, 2, 0, 16)}}, "and 1 for dimension 0"),
        ({"metric": "top1"}, "--metric is for other models"),
        ({"prefer": "latency"}, "one of tokens, memory, balanced"),
        ({"objectives": ("throughput_per_s", "cpu_s"), "clients": 2}, "--objective tokens"),
    ],
)
def test_wrong_requests_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a sentence that says what to change."""
    monkeypatch.chdir(tmp_path)
    path = decoder_models.write("gqa", tmp_path / "gqa.onnx")
    Path("config.json").write_text(json.dumps({"max_position_embeddings": 256}))
    Path("prompts.jsonl").write_text('{"tokens": [1, 2]}')
    with pytest.raises((RequestError, ModelError)) as error:
        resolve_study(StudyOptions.of(path, **options), Seams())
    assert words in str(error.value)


def test_what_an_encoder_made_is_fed(tmp_path: Path) -> None:
    """``--data`` beside prompts has the inputs that are the same in all steps, and no others."""
    model = describe(decoder_models.write("crossed", tmp_path / "crossed.onnx"))
    asked, file = Generate(prompt_tokens=(4,)), tmp_path / "encoded.npz"
    np.savez(file, encoder_hidden_states=_ENCODER["encoder_hidden_states"])
    workload = workload_for(model, file, {}, generation=asked)
    np.testing.assert_array_equal(
        workload.feeds[0]["encoder_hidden_states"], _ENCODER["encoder_hidden_states"]
    )
    assert not any("made up" in note for note in workload.notes)
    assert any("made up" in n for n in workload_for(model, None, {}, generation=asked).notes)
    wrong: list[dict[str, Any]] = [{}, {"input_ids": np.ones((1, 2), np.int64), **_ENCODER}]
    for arrays in wrong:
        np.savez(file, **arrays)
        with pytest.raises(DataError, match="the same in all steps, encoder_hidden_states"):
            workload_for(model, file, {}, generation=asked)
    with pytest.raises(DataError, match="there is no file"):
        workload_for(model, tmp_path / "none.npz", {}, generation=asked)
    plain = describe(decoder_models.write("plain", tmp_path / "plain.onnx"))
    with pytest.raises(RequestError, match="runs single steps"):
        workload_for(plain, file, {}, generation=asked)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "holds no prompt"),
        ("{", "line 1: it is no JSON"),
        ('{"prompts": "x"}', "is no prompt"),
        ('{"tokens": [1, -2]}', "'tokens' holds"),
        ('{"tokens": [1, 999]}', "has 64 tokens: the tokenizer or the ids"),
        ('{"prompt": "text"}', "no tokenizer.json"),
        (b'{"prompt": "\xff"}', "no UTF-8 text: byte 12 is wrong"),
        (b'{"prompt": "' + b"a" * (17 << 20) + b'"}', "larger than 16 MiB"),
        ('{"prompt": "' + "a " * (1 << 17) + '"}', "longer than 131072 characters"),
        ("[" * 100_000, "nested too deeply"),
        ('{"tokens": [NaN]}', "holds NaN"),
        ('{"tokens": [%s]}' % ("9" * 5000), "Exceeds the limit"),
        ('{"tokens": [true]}', "'tokens' holds [True]"),
        ('{"tokens": ["1"]}', "'tokens' holds ['1']"),
        ('{"prompt": 5}', "'prompt' holds 5"),
        ('{"prompt": "a", "tokens": [1]}', "is no prompt"),
        ('{"tokens": [1], "tokens": [2]}', "the key 'tokens' is there twice"),
        ("5", "5 is no prompt"),
        ('{"prompt": "\\ud800"}', "half of a pair of surrogates"),
        ('{"tokens": [2147483647]}', "gives the token 2147483647"),
        ('{"tokens": [1]}\n' * 100_001, "more than 100000 lines"),
    ],
    ids=range(21),
)
def test_wrong_prompts_are_refused(lines: str | bytes, words: str, tmp_path: Path) -> None:
    """A file of prompts comes from anywhere: one sentence, whatever it holds."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    _refused(prompts, words)


def _refused(prompts: Path, words: str) -> None:
    model = describe(decoder_models.write("plain", prompts.parent / "plain.onnx"))
    with pytest.raises(DataError) as error:
        workload_of_prompts(model, prompts)
    message = str(error.value)
    assert words in message
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    assert error.value.exit_code == 2


_WORDS = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (b"", "is no tokenizer: EOF"),
        (b"\xff\xfe", "no UTF-8 text"),
        (b"[" * 100_000, "is no tokenizer"),
        ({"model": {**_WORDS, "vocab": {"[UNK]": 64}}}, "has 64 tokens: the tokenizer or the ids"),
        ({"model": {**_WORDS, "vocab": {"[UNK]": -1}}}, "is no tokenizer"),
        ({"model": {**_WORDS, "vocab": {"[UNK]": 2**32 - 1}}}, "gives the token 4294967295"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"},
          "behavior": "Isolated", "invert": False}}, "is no tokenizer"),
    ],
    ids=["empty", "bytes", "deep", "beyond", "negative", "u32", "regex"],
)  # fmt: skip
def test_wrong_tokenizers_are_refused(
    tokenizer: bytes | dict[str, Any], words: str, tmp_path: Path
) -> None:
    """A tokenizer comes from anywhere as well; native code reads it in a child."""
    pytest.importorskip("tokenizers")
    if isinstance(tokenizer, dict):
        parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
        whole = {"added_tokens": [], "model": _WORDS, **dict.fromkeys(parts), **tokenizer}
        tokenizer = json.dumps(whole).encode()
    (tmp_path / "tokenizer.json").write_bytes(tokenizer)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "a" * 40 + "b"}))
    _refused(prompts, words)


@pytest.mark.parametrize(
    "sizes", [(1 << 20, 16), (2, 1 << 20), (-1, 10**40), ("2", True), (2.0, None)]
)
def test_absurd_sizes_beside_a_model_are_not_taken(
    sizes: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no model has is asked for, as if nothing had said it."""
    cache = ("batch_size", "heads", "past_sequence_length", "size")
    monkeypatch.setattr(decoder_models, "_CACHE", cache)
    path = decoder_models.write("gqa", tmp_path / "gqa.onnx")
    own = {"num_key_value_heads": sizes[0], "head_size": sizes[1]}
    genai = {"model": {"context_length": 10**30, "decoder": own}}
    (tmp_path / "genai_config.json").write_text(json.dumps(genai))
    with pytest.raises(RequestError, match="leaves sizes of") as error:
        workload_of_prompts(describe(path))
    assert error.value.exit_code == 2


def test_one_shape_tells_the_sizes_of_all_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a model leaves open is given once; what is open is shown by an inspection."""
    cache = (1, "heads", "past_sequence_length", "size")
    monkeypatch.setattr(decoder_models, "_CACHE", cache)
    path = decoder_models.write("plain", tmp_path / "plain.onnx")
    inspection = inspect_model(path, quick=True)
    assert "leaves sizes of" in inspection.failure
    assert "past_key_values.0.key = present.0.key: cache [1, ?, 0, ?]" in words_of(
        view_inspection(inspection)
    )
    given = {"past_key_values.0.key": _PAST["past_key_values.0.key"]}
    workload = workload_of_prompts(describe(path), shapes=given)
    assert {name: workload.feeds[0][name].shape for name in _PAST} == _PAST
    made = generation(onnxruntime.InferenceSession(path), shapes=given)
    assert len(made.generate(_TOKENS, 4)) == 4
    with pytest.raises(RequestError, match="give 4 sizes"):
        generation(onnxruntime.InferenceSession(path), shapes={"past_key_values.0.key": (2, 0)})


def test_defaults_fit_a_small_context(tmp_path: Path) -> None:
    path = decoder_models.write("plain", tmp_path / "plain.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 16}))
    workload = workload_of_prompts(describe(path))
    assert workload.plan is not None
    assert workload.feeds[0]["input_ids"].shape == (1, 8)
    assert workload.plan.new_tokens == 8


def test_text_becomes_tokens_and_windows(tmp_path: Path) -> None:
    """Text goes through the tokenizer beside the model; held text is cut into windows."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "a", "b", "c"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    model = describe(decoder_models.write("plain", tmp_path / "plain.onnx"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"prompt": "a b\u2028c a"}\r\n{"tokens": [5, 6]}\n{"text": "c b a ' + "a " * 300 + '"}',
        encoding="utf-8",
    )
    workload = workload_of_prompts(model, prompts, new_tokens=3)
    assert [feed["input_ids"].tolist() for feed in workload.feeds] == [[[5, 6]], [[1, 2, 3, 1]]]
    assert [len(window) for window in workload.held] == [256, 47]
    assert workload.held[0][:4].tolist() == [3, 2, 1, 1]
    assert workload.source == "user"
    assert workload.signature() != workload_of_prompts(model, prompts, new_tokens=4).signature()


def test_prompts_alone_are_enough(tmp_path: Path) -> None:
    """Ids of an unknown vocabulary are taken, and prompts too short to be text are timed alone."""
    model = describe(decoder_models.write("plain", tmp_path / "plain.onnx"))
    assert model.decoder is not None
    bare = replace(
        model,
        decoder=replace(model.decoder, vocabulary=None),
        inputs=tuple(replace(tensor, index_bound=None) for tensor in model.inputs),
    )
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"tokens": [5, 6]}\n{"tokens": [7]}')
    workload = workload_of_prompts(bare, prompts)
    assert (len(workload.feeds), workload.held, workload.source) == (2, (), "generated")
    with pytest.raises(RequestError, match="does not say how many tokens"):
        workload_of_prompts(bare)


def test_a_wrong_cache_and_worse_answers_are_seen() -> None:
    """The error is the rise of the perplexity; NaN and a wrong cache are no answers."""
    nll = np.full(32, 2.0, np.float32)
    right: Outputs = {"nll": nll, "choice": np.arange(32), "cached_nll": nll[-4:]}
    judge = TextJudge([right])
    assert judge.compare([right]).error == 0
    worse = {**right, "nll": nll + 0.05, "cached_nll": nll[-4:] + 0.05, "choice": np.arange(1, 33)}
    fidelity = judge.compare([worse])
    assert fidelity.error == pytest.approx(np.expm1(0.05), rel=1e-4)
    assert fidelity.agreement == 0
    with pytest.raises(OutputMismatchError, match="NaN"):
        judge.compare([{**right, "nll": nll * np.nan}])
    with pytest.raises(OutputMismatchError, match="with the cache differ"):
        judge.compare([{**right, "cached_nll": nll[-4:] + 1}])


def _kept(path: Path, *, is_input: bool) -> Model:
    """Returns a decoder that gives logits of the last tokens: of one, or as an input says."""
    name = "num_logits_to_keep"
    model = onnx.load(decoder_models.write("plain", path))
    graph = model.graph
    head = next(node for node in graph.node if node.output[0] == "logits")
    for value, constant in (("axis", [0]), ("end", [2**31]), ("rows", [1])):
        graph.initializer.append(numpy_helper.from_array(np.array(constant), value))
    if is_input:
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))
    else:
        graph.initializer.append(numpy_helper.from_array(np.array(1), name))
    nodes = [
        helper.make_node("Neg", [name], ["negative"]),
        helper.make_node("Unsqueeze", ["negative", "axis"], ["first"]),
        helper.make_node("Slice", [head.input[0], "first", "end", "rows"], ["kept"]),
    ]
    head.input[0] = "kept"
    others = [node for node in graph.node if node is not head]
    del graph.node[:]
    graph.node.extend([*others, *nodes, head])
    onnx.save(model, path)
    return describe(path)


def _text_set(model: Model, workload: Workload, folder: Path) -> SampleSet:
    handlers = Worker().handlers()
    child: Any = SimpleNamespace(request=lambda message, *_: handlers[message["do"]](message))
    return text_set(child, model, workload, folder)[1]


def test_all_logits_are_needed_to_rate_text(tmp_path: Path) -> None:
    """An input that says how many are kept is made up so that all are; else a sentence says so."""
    model = _kept(tmp_path / "input.onnx", is_input=True)
    judge = _text_set(model, workload_of_prompts(model, new_tokens=2), tmp_path).judge
    assert isinstance(judge, TextJudge)
    pruned = _kept(tmp_path / "pruned.onnx", is_input=False)
    with pytest.raises(CannotMeasureError, match=r"logits of all tokens.*--shape input_ids=1,1"):
        _text_set(pruned, workload_of_prompts(pruned, new_tokens=2), tmp_path)


@pytest.mark.parametrize(
    "shape", [[1, decoder_models.VOCABULARY], [1, 1, decoder_models.VOCABULARY]]
)
def test_single_runs_are_measured_where_no_text_can_be_rated(
    shape: list[int], tmp_path: Path
) -> None:
    """The shape of the logits says that they are those of a prompt's last token."""
    path = decoder_models.write("recurrent", tmp_path / "last.onnx")
    model = onnx.load(path)
    logits = next(value for value in model.graph.output if value.name == "logits")
    logits.name = "last"
    logits.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    for name, array in (("size", np.array(shape)), ("row", np.array([-1]))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node.append(helper.make_node("Gather", ["logits", "row"], ["one"], axis=1))
    model.graph.node.append(helper.make_node("Reshape", ["one", "size"], ["last"]))
    onnx.save(model, path)
    last = describe(path)
    assert last.decoder is not None
    assert last.decoder.generates
    assert workload_for(last, None, {}).plan is None


def test_the_cache_is_checked_on_the_longest_text(tmp_path: Path) -> None:
    """A first prompt of three tokens leaves one step with a cache; the longest has fifteen."""
    model = describe(decoder_models.write("plain", tmp_path / "plain.onnx"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"tokens": [1] * n}) + "\n" for n in (3, 4, 40, 5)))
    files = _text_set(model, workload_of_prompts(model, prompts), tmp_path).files
    assert len(load_samples(files.validation)[0]["tokens"]) == 40
    assert load_samples(files.outputs)[0]["cached_nll"].size == 16


def test_inputs_that_change_are_not_made_up(tmp_path: Path) -> None:
    """A length that is fed as a constant would make the pairs look wrong."""
    path = decoder_models.write("plain", tmp_path / "plain.onnx")
    model = onnx.load(path)
    length = helper.make_tensor_value_info("total_seq_len", TensorProto.INT32, [1])
    model.graph.input.append(length)
    onnx.save(model, path)
    with pytest.raises(RequestError, match="takes total_seq_len, which by the name changes"):
        workload_of_prompts(describe(path))
    with pytest.raises(RequestError, match="nothing feeds the inputs total_seq_len"):
        generation(onnxruntime.InferenceSession(path))


def test_clocks_see_prompts_and_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether buffers are shared is found before; one new token has a step of its own."""
    model = describe(decoder_models.write("gqa", tmp_path / "gqa.onnx"))
    workload = workload_of_prompts(model, lengths=(4, 8), new_tokens=1, shapes=_PAST)
    assert workload.plan is not None
    events: list[str] = []
    can_share = Generation._can_share

    def probe(self: Generation) -> bool:
        events.append("probe")
        return can_share(self)

    def clock() -> int:
        events.append("clock")
        return int(1e6) * len(events) ** 2

    monkeypatch.setattr(Generation, "_can_share", probe)
    monkeypatch.setattr(measure_generation, "time", SimpleNamespace(perf_counter_ns=clock))
    runs = GenerationRuns(onnxruntime.InferenceSession(model.path), workload.plan, workload.feeds)
    first, step = runs.first(1)
    assert events == ["probe", *["clock"] * 3]
    assert step != first
    times = runs.whole(0)
    assert times.step_ms != times.ttft_ms


def test_the_slowest_step_is_that_of_the_same_prompt() -> None:
    """The first steps follow the last prompt, so its steps are what they are compared with."""
    usage = Usage(resident_mib=1.0, anonymous_mib=None, peak_mib=1.0)
    lengths = tuple(
        LengthTimes(prompt_tokens=n, context=n + 1, ttft_ms=1.0, step_ms=n) for n in (2, 10)
    )
    runs = FirstRuns(first_run_ms=1.0, run_ms=6.0, after=usage, lengths=lengths)
    opened = Opened(load_ms=1.0, base=usage, loaded=usage)
    assert TimeLimits.beside(opened, runs).step_ms == 30.0


def test_text_that_is_far_off_is_not_read_to_its_end() -> None:
    """A quarter of the windows shows a rise far beyond the limit, and none of one near it."""
    random = np.random.default_rng(0)
    texts = [random.uniform(1, 3, 32).astype(np.float32) for _ in range(16)]
    right: list[Outputs] = [
        {"nll": nll, "choice": np.arange(32), "cached_nll": nll[-4:]} for nll in texts
    ]
    judge = TextJudge(right)
    assert judge.first_look == 4

    def worse(by: float) -> list[Outputs]:
        shifts = random.normal(by, 0.02, 16).astype(np.float32)
        return [
            {**own, "nll": own["nll"] + s, "cached_nll": own["cached_nll"] + s}
            for own, s in zip(right, shifts, strict=True)
        ]

    assert judge.surely_above(worse(0.25)[:4], 0.08) == pytest.approx(0.28, abs=0.04)
    assert judge.surely_above(worse(0.09)[:4], 0.08) is None
    with pytest.raises(OutputMismatchError, match="NaN"):
        judge.surely_above(worse(np.nan)[:4], 0.08)
    assert not TextJudge(right[:8]).first_look


@pytest.mark.process
def test_what_is_far_too_slow_or_known_to_be_wrong_costs_little(tmp_path: Path) -> None:
    """The first steps give it up; text is rated once for all sessions of the same answers."""
    model = describe(decoder_models.write("gqa", tmp_path / "gqa.onnx"))
    workload = workload_of_prompts(model, new_tokens=6, shapes=_PAST)
    measurer = DuetMeasurer(model, workload, max_error=0.02)
    briefly = Effort(time_cap_s=0.01, patience_s=0.01, half_width=1.0, plays_prompts=False)
    try:
        first = measurer.measure(BASELINE, briefly)
        assert isinstance(first, Measurement)
        assert first.generated is not None
        assert first.generated.ttft_ratio is None
        judge = measurer._sets[1].judge
        measurer._sets[1] = replace(measurer._sets[1], judge=_Refusing(judge))
        other = measurer.measure(Configuration.of({"arena": "off"}), briefly)
        assert isinstance(other, Measurement)
        assert other.fidelity == first.fidelity
        level = Configuration.of({"graph_optimization_level": "ORT_ENABLE_BASIC"})
        wrong = measurer.measure(level, briefly)
        assert isinstance(wrong, Failure)
        assert wrong.kind == "wrong_answers"
        measurer._sets[1] = replace(measurer._sets[1], judge=judge)
        assert measurer.measure(level, briefly) == wrong
        measurer._limits = replace(measurer._limits, step_ms=1e-6)
        slow = measurer.measure(BASELINE, briefly, lambda _: False)
        assert isinstance(slow, Failure)
        assert (slow.kind, slow.phase) == ("slow", "run")
        assert isinstance(measurer.measure(BASELINE, briefly), Measurement)
    finally:
        measurer.close()


class _Refusing:
    """A judge that finds all answers wrong."""

    first_look = 0
    is_costly = True
    only_unchanged = ""

    def __init__(self, judge: Judge) -> None:
        self.compare = lambda outputs: replace(judge.compare(outputs), error=1.0)
        self.surely_above = judge.surely_above


def test_positions_may_have_one_axis(tmp_path: Path) -> None:
    """Exports of a static cache take ``cache_position`` of the new tokens alone."""
    path = decoder_models.write("plain", tmp_path / "plain.onnx")
    greedy = generation(onnxruntime.InferenceSession(path)).generate(_TOKENS, 6)
    model = onnx.load(path)
    place = helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["sequence_length"])
    model.graph.input.append(place)
    onnx.save(model, path)
    assert generation(onnxruntime.InferenceSession(path)).generate(_TOKENS, 6) == greedy
    described = describe(path)
    assert described.decoder is not None
    plan = workload_of_prompts(described, None, (4,), 2, {}, 0, {})
    assert plan.feeds[0]["cache_position"].shape == (4,)


def test_generation_by_names_alone(tmp_path: Path) -> None:
    """An application has a session alone; what its names do not say is asked for."""
    path = decoder_models.write("plain", tmp_path / "plain.onnx")
    greedy = generation(onnxruntime.InferenceSession(path)).generate(_TOKENS, 6)
    odd = decoder_models.write("plain", tmp_path / "odd.onnx", past="alpha", names="omega")
    session = onnxruntime.InferenceSession(odd)
    with pytest.raises(RequestError, match="no decoder"):
        generation(session)
    pairs = {f"alpha.{n}": f"omega.{n}" for n in ("key", "value")}
    assert generation(session, pairs=pairs).generate(_TOKENS, 6) == greedy
    with pytest.raises(RequestError, match="no input or output 'beta'"):
        generation(session, pairs={"beta": "omega.key"})
    model = onnx.load(path)
    model.graph.input[0].name = "words"
    for node in model.graph.node:
        node.input[:] = ["words" if name == "input_ids" else name for name in node.input]
    renamed = onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(RequestError, match="no decoder"):
        generation(renamed)
    with pytest.raises(RequestError, match="tokens: the model has no input or output 'word'"):
        generation(renamed, tokens="word")
    assert generation(renamed, tokens="words").generate(_TOKENS, 6) == greedy
    with pytest.raises(RequestError, match="no token"):
        generation(onnxruntime.InferenceSession(path)).generate([], 6)
    made = generation(onnxruntime.InferenceSession(path))
    made.start = lambda *_: np.array([[1.0, np.nan]])  # type: ignore[method-assign]
    with pytest.raises(RequestError, match="NaN or infinite"):
        made.generate(_TOKENS, 6)


def test_a_mask_of_what_an_encoder_gives_is_not_that_of_the_tokens() -> None:
    """It is as long as the encoder's states, and the same at each step."""

    def port(name: str, dtype: str, *shape: int | str) -> Port:
        return Port(name=name, dtype=dtype, shape=shape)

    ids, memory = port("ids", "int64", "b", "t"), port("memory", "float32", "b", "source", 8)
    state, logits = port("state", "float32", "b", 2, 8), port("logits", "float32", "b", "t", 50)
    for mask, role in (("source", None), ("t", "mask")):
        decoder = decoder_of(
            [ids, memory, port("mask", "bool", "b", mask), state],
            [logits, port("state_out", "float32", "b", 2, 8)],
            {"state": "state_out"},
            bounds={"ids": 50},
        )
        assert decoder is not None
        assert decoder.mask == role
        assert ("mask" in decoder.others) == (role is None)
