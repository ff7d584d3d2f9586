"""Linear layers with int8 weights compute what their definition says, row by row."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tiny import batch, tiny_model
from toy_labels import save_toy_answerer, save_toy_classifier, save_toy_decoder, save_toy_encoder
from toy_translation import save_toy_checkpoint
from vaswani import Classifier, Embedder, QuestionAnswerer, TextGenerator, Translator
from vaswani.errors import UserError
from vaswani.inference.quantization import quantize
from vaswani.kernels import decoder_step, int8_linear
from vaswani.kernels.int8_linear import Int8Linear

pytestmark = pytest.mark.skipif(int8_linear.unavailable() is not None, reason="no VNNI instructions here")


def reference(linear: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    weight, states = linear.weight.detach().double(), states.double()
    weight_scale = weight.abs().amax(1, keepdim=True) / 127  # [N, 1]
    scale = states.abs().amax(-1, keepdim=True) / 127  # [..., 1]
    scale = scale.where(scale > 0, 1.0)
    product = (states / scale).round() @ (weight / weight_scale).round().t()
    output = product * scale * weight_scale[:, 0]
    return output if linear.bias is None else output + linear.bias.detach().double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (300,)])
@torch.no_grad()
def test_int8_linear_equals_its_reference(shape: tuple[int, ...], bias: bool) -> None:
    linear, states = nn.Linear(96, 80, bias), torch.randn(*shape, 96)
    output = Int8Linear(linear)(states)
    expected = reference(linear, states)
    # A value in the middle of two steps may be rounded either way.
    steps = (output - expected).abs() / (states.abs().amax(-1, keepdim=True) / 127)
    assert steps.max() < 2 * linear.weight.abs().max()
    assert (output - expected).abs().mean() < 1e-4
    difference = (output - linear(states)).norm() / linear(states).norm()
    assert 0 < difference < 0.02


@torch.no_grad()
def test_a_row_does_not_depend_on_the_others() -> None:
    layer, states = Int8Linear(nn.Linear(64, 48)), torch.randn(9, 64)
    states[3] *= 1e4
    whole = layer(states)
    for row in range(9):
        assert torch.equal(layer(states[row : row + 1]), whole[row : row + 1])


@torch.no_grad()
def test_extreme_rows_and_weights() -> None:
    linear = nn.Linear(64, 48)
    linear.weight[5] = 0.0
    linear.weight[6] = 1e6
    layer = Int8Linear(linear)
    assert torch.allclose(layer(torch.zeros(2, 64)), linear.bias.expand(2, -1))
    large = layer(1e20 * torch.ones(1, 64))
    assert large.isfinite().all()
    assert large[0, 5] == linear.bias[5]
    assert layer(torch.full((1, 64), torch.nan)).isnan().all()


def quantized(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(int8_linear, "MIN_WEIGHTS", 0)
    return quantize(copy.deepcopy(model), "int8")


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_finds_the_same_with_and_without_the_calls_of_modules(
    num_beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = quantized(tiny_model(), monkeypatch), batch(rows=5)
    del data["labels"]
    options = {"num_beams": num_beams, "max_new_tokens": 20, "do_sample": False}
    assert decoder_step.is_plain(model)
    found = model.generate(**data, **options)
    monkeypatch.setattr("vaswani.kernels.search.is_plain", lambda model: False)
    assert found.tolist() == model.generate(**data, **options).tolist()


def test_only_large_layers_change_and_embeddings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "MIN_WEIGHTS", 61 * 32)
    model = tiny_model()
    before = model.get_input_embeddings().weight.clone()
    changed = quantize(model, "int8")
    names = [name for name, module in changed.named_modules() if isinstance(module, Int8Linear)]
    assert names == ["lm_head"]
    assert torch.equal(changed.get_input_embeddings().weight, before)


def test_unsupported_models_and_processors_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="quantization=int8 changes nothing: no linear layer"):
        quantize(tiny_model(), "int8")
    with pytest.raises(UserError, match="works on the CPU in float32; the model is on cpu in bfloat16"):
        quantize(tiny_model().bfloat16(), "int8")
    with pytest.raises(UserError, match="quantization='int4' is unknown; expected 'int8'"):
        quantize(tiny_model(), "int4")
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.raises(UserError, match="cannot be used here: the processor has no VNNI"):
        quantize(tiny_model(), "int8")
    assert quantize(model := tiny_model(), None) is model


def test_a_translator_is_quantized_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_toy_checkpoint(tmp_path)
    sentences = ["one two three", "seven", "four five " * 4]
    plain = list(Translator.from_pretrained(tmp_path).translate(sentences))
    monkeypatch.setattr(int8_linear, "MIN_WEIGHTS", 0)
    loaded = Translator.from_pretrained(tmp_path, quantization="int8")
    assert any(isinstance(module, Int8Linear) for module in loaded.model.modules())
    scores = [best.hypotheses[0].score for best in loaded.translate(sentences)]
    expected = [best.hypotheses[0].score for best in plain]
    assert scores != expected
    assert scores == pytest.approx(expected, rel=0.2)


def scores_of(loaded: Any, texts: list[str]) -> torch.Tensor:
    """Numbers that a model finds for each text."""
    if isinstance(loaded, Classifier):
        return torch.tensor([list(each.probabilities.values()) for each in loaded(texts)])
    if isinstance(loaded, Embedder):
        return loaded.embed(texts)
    if isinstance(loaded, QuestionAnswerer):
        answers = loaded.answer(("who saw rome", text) for text in texts)
        return torch.tensor([[each.null_odds, each.spans[0].score] for each in answers])
    found = loaded.generate(texts)
    return torch.tensor([[each.continuations[0].log_prob] for each in found])


SAVED: dict[str, tuple[Any, Any]] = {
    "classifier": (Classifier, partial(save_toy_classifier, task="classification")),
    "BERT": (Classifier, partial(save_toy_classifier, task="classification", library=True)),
    "answerer": (QuestionAnswerer, save_toy_answerer),
    "encoder": (Embedder, save_toy_encoder),
    "decoder": (TextGenerator, save_toy_decoder),
}


@pytest.mark.parametrize("name", SAVED)
def test_other_models_are_quantized_when_they_are_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_linear, "MIN_WEIGHTS", 0)
    of_class, save = SAVED[name]
    save(tmp_path)
    texts = ["ann saw rome", "the film was great", "bob was in oslo and the film was awful"]
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    expected = scores_of(of_class.from_pretrained(tmp_path, **options), texts)
    loaded = of_class.from_pretrained(tmp_path, **options, quantization="int8")
    found = scores_of(loaded, texts)
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()
    alone = torch.cat([scores_of(loaded, [text]) for text in texts])
    torch.testing.assert_close(alone, found, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_other_engines_refuse_int8_quantization_at_load_time(engine: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"quantization=int8 has no effect with engine={engine}, whose types"):
        Translator.from_pretrained(tmp_path, engine=engine, quantization="int8")
