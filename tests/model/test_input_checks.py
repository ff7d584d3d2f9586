"""Every argument of every model is used as documented, or refused with its value."""

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache
from transformers.utils import ModelOutput

from tiny import TINY, batch, tiny_model, tokens
from vaswani import (
    VaswaniDecoderConfig,
    VaswaniDecoderModel,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
    VaswaniForMultipleChoice,
    VaswaniForPreTraining,
    VaswaniForQuestionAnswering,
    VaswaniForSequenceClassification,
    VaswaniForTokenClassification,
    VaswaniModel,
)
from vaswani.kernels.projected_loss import TokenLoss
from vaswani.model.compatibility import CACHE_NAME

VOCAB, WIDTH, LEARNED, TYPES, LABELS = TINY["vocab_size"], TINY["d_model"], 12, 2, 5
ROWS, LENGTH = 3, 7

STACK = {"d_model": WIDTH, "vocab_size": VOCAB, "position_embedding": "learned", "dropout": 0.0}
ENCODER_FIELDS: dict[str, Any] = {
    **STACK,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "token_type_vocab_size": TYPES,
    "max_position_embeddings": LEARNED,
    "num_labels": LABELS,
}
ENCODER = VaswaniEncoderConfig(**ENCODER_FIELDS)
DECODER = VaswaniDecoderConfig(
    **STACK,
    decoder_layers=1,
    decoder_attention_heads=2,
    decoder_ffn_dim=16,
    max_position_embeddings=LEARNED,
)

MODELS: dict[type[nn.Module], Any] = {
    **dict.fromkeys(
        (
            VaswaniEncoderModel,
            VaswaniForMaskedLM,
            VaswaniForPreTraining,
            VaswaniForSequenceClassification,
            VaswaniForTokenClassification,
            VaswaniForQuestionAnswering,
        ),
        ENCODER,
    ),
    **dict.fromkeys((VaswaniDecoderModel, VaswaniForCausalLM), DECODER),
    **dict.fromkeys((VaswaniModel, VaswaniForConditionalGeneration), None),
}


def make(model_class: type[nn.Module], **fields: Any) -> nn.Module:
    if (config := MODELS[model_class]) is not None:
        return model_class(type(config)(**{**config.to_dict(), **fields})).eval()
    model = tiny_model(**{"position_embedding": "learned", "max_position_embeddings": LEARNED, **fields})
    return model if model_class is VaswaniForConditionalGeneration else model.model


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, shape)


def right(model_class: type[nn.Module]) -> dict[str, Any]:
    """Arguments that are right together."""
    ones = torch.ones(ROWS, LENGTH, dtype=torch.long)
    arguments: dict[str, Any] = {"input_ids": ids(ROWS, LENGTH), "attention_mask": ones}
    parameters = inspect.signature(model_class.forward).parameters
    if "token_type_ids" in parameters:
        arguments["token_type_ids"] = torch.zeros_like(ones)
    if "position_ids" in parameters:
        arguments["position_ids"] = torch.arange(LENGTH).expand(ROWS, -1)
    if "decoder_input_ids" in parameters:
        arguments["decoder_input_ids"] = ids(ROWS, 5)
        arguments["decoder_attention_mask"] = torch.ones(ROWS, 5, dtype=torch.long)
    if "labels" in parameters:
        arguments["labels"] = ids(ROWS, 5 if "decoder_input_ids" in parameters else LENGTH) % LABELS
    if model_class is VaswaniForSequenceClassification:
        arguments["labels"] = torch.tensor([0, 1, LABELS - 1])
    if "next_sentence_label" in parameters:
        arguments["next_sentence_label"] = torch.tensor([0, 1, 0])
    if "start_positions" in parameters:
        arguments |= {name: torch.tensor([1, 2, 3]) for name in ("start_positions", "end_positions")}
    if "smoothing" in parameters:
        arguments["smoothing"] = 0.1
    return arguments


Change = Callable[[Any], Any]


def holding(number: Any) -> Change:
    """The same with one element replaced."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(tensor.dtype, torch.tensor(number).dtype)
        changed = tensor.to(dtype).clone()
        changed.view(-1)[-1] = number
        return changed

    return change


def longer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[..., -1:]], -1)


SHAPES: dict[str, Change] = {
    "longer": longer,
    "shorter": lambda x: x[..., :-1],
    "another row": lambda x: torch.cat([x, x[-1:]]),
    "a row less": lambda x: x[:-1],
    "one dimension more": lambda x: x[None],
    "flat": lambda x: x.reshape(1, -1) if x.ndim == 1 else x.flatten(),
}
TRANSPOSED: dict[str, Change] = {"transposed": lambda x: x.T}
MASK: dict[str, Change] = {f"holds {n}": holding(n) for n in (0.5, 2, -1, float("nan"), float("-inf"))} | {
    "four dimensions of integers": lambda x: x[:, None, None],
    "four dimensions, ones added": lambda x: x[:, None, None].float(),
    "four dimensions, other keys": lambda x: torch.zeros(ROWS, 1, x.shape[1], x.shape[1] + 1),
    "four dimensions, other queries": lambda x: torch.zeros(ROWS, 1, x.shape[1] + 1, x.shape[1]),
}


def integers(low: int, high: int) -> dict[str, Change]:
    """Not from `low` to `high`."""
    below, above = f"holds {low - 1}", f"holds {high + 1}"
    return {below: holding(low - 1), above: holding(high + 1), "floats": lambda x: x.float()}


KINDS: dict[str, Change] = {
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "sparse": lambda x: (x + 1).to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
}
NOTHING: dict[str, Change] = {"no rows": lambda x: x[:0], "no tokens": lambda x: x[:, :0]}
TOO_MUCH: dict[str, Change] = {"given too": lambda _: torch.zeros(ROWS, LENGTH, WIDTH)}
TOKENS = integers(0, VOCAB - 1) | KINDS | NOTHING
TOKENS |= {"flat": SHAPES["flat"], "one dimension more": SHAPES["one dimension more"]}
TOKENS["without values"] = lambda x: x.to("meta")
LABEL_SHAPES = KINDS | {
    name: SHAPES[name] for name in ("longer", "shorter", "another row", "a row less", "flat")
}

# What is wrong with each argument of any `forward`. One that is new has no entry, and a test says so.
WRONG: dict[str, dict[str, Change]] = {
    "input_ids": TOKENS,
    "attention_mask": SHAPES | TRANSPOSED | MASK | KINDS,
    "token_type_ids": SHAPES | TRANSPOSED | KINDS | integers(0, TYPES - 1),
    "position_ids": SHAPES | TRANSPOSED | KINDS | integers(0, LEARNED - 1),
    "inputs_embeds": TOO_MUCH,
    "decoder_input_ids": TOKENS,
    "decoder_attention_mask": SHAPES | TRANSPOSED | MASK | KINDS,
    "decoder_inputs_embeds": TOO_MUCH,
    "encoder_outputs": {"given too": lambda _: (torch.zeros(ROWS, LENGTH, WIDTH),)},
    CACHE_NAME: {"of the other kind": lambda _: None},  # depends on the model: see below
    "labels": LABEL_SHAPES
    | {"floats": lambda x: x.float(), "holds -1": holding(-1), "holds 99": holding(99)},
    "next_sentence_label": LABEL_SHAPES | integers(0, 1),
    "start_positions": LABEL_SHAPES | {"holds -1": holding(-1), "missing": lambda _: None},
    "end_positions": LABEL_SHAPES | {"holds -1": holding(-1), "missing": lambda _: None},
    "smoothing": {str(n): lambda _, n=n: n for n in (-0.1, 1.1, float("nan"), float("inf"))},
    "logits_to_keep": {"-1": lambda _: -1, "with labels": lambda _: 2},
    "token_loss": {"too many tokens": lambda _: TokenLoss(torch.ones(ROWS, 9, dtype=torch.bool), print)},
    "use_cache": {},  # true or false
    # of **kwargs
    "num_items_in_batch": {
        **{str(n): lambda _, n=n: n for n in (0, -3, float("nan"))},
        "tensor": lambda _: torch.tensor(0),
    },
    "head_mask": {"given": lambda _: torch.ones(2)},
}
OF_KWARGS = ("num_items_in_batch", "head_mask")


def names(model_class: type[nn.Module]) -> list[str]:
    parameters = list(inspect.signature(model_class.forward).parameters)[1:-1]  # neither self nor kwargs
    with_loss = "labels" in parameters and model_class is not VaswaniForSequenceClassification
    return parameters + [name for name in OF_KWARGS if with_loss or name == "head_mask"]


@pytest.mark.parametrize("model_class", MODELS)
def test_every_argument_is_in_the_table(model_class: type[nn.Module]) -> None:
    assert set(names(model_class)) <= set(WRONG)
    assert "kwargs" in inspect.signature(model_class.forward).parameters


@pytest.mark.parametrize("model_class", MODELS)
def test_valid_inputs_are_accepted(model_class: type[nn.Module]) -> None:
    output = make(model_class)(**right(model_class))
    assert isinstance(output, ModelOutput)


@pytest.mark.parametrize(
    ("model_class", "name"), [(model_class, name) for model_class in MODELS for name in names(model_class)]
)
def test_invalid_inputs_raise_an_error_that_names_the_argument(
    model_class: type[nn.Module], name: str
) -> None:
    """In one line, which names the argument."""
    model, given = make(model_class), right(model_class)
    for what, change in WRONG[name].items():
        wrong = {**given, name: change(given.get(name))}
        if name == CACHE_NAME:
            other = DynamicCache() if "decoder_input_ids" in given else EncoderDecoderCache(DynamicCache())
            wrong[name] = other
        with pytest.raises(ValueError, match=r"\w") as refusal:
            model(**wrong)
        message = str(refusal.value)
        named = name.removeprefix("decoder_") if name.endswith(("embeds", "ids")) else name
        elsewhere = {"input_ids": "token id", "position_ids": "max_position_embeddings"}
        assert named in message or elsewhere.get(named, named) in message, (what, message)
        assert "\n" not in message, (what, message)


@pytest.mark.parametrize("name", ["input_ids", "attention_mask"])
def test_inputs_of_choices_have_rows_choices_and_tokens(name: str) -> None:
    model = VaswaniForMultipleChoice(ENCODER).eval()
    given = {"input_ids": ids(2, 3, 4), "attention_mask": torch.ones(2, 3, 4)}
    assert model(**given).logits.shape == (2, 3)
    wrong: dict[str, Change] = {**KINDS, "two dimensions": lambda x: x[0], "one dimension": lambda x: x[0, 0]}
    for change in wrong.values():
        with pytest.raises(ValueError, match=f"^{name} (is a|has the shape)"):
            model(**{**given, name: change(given[name])})
    with pytest.raises(ValueError, match="got neither"):
        model()


@pytest.mark.parametrize("kind", ["no rows", "no tokens"])
def test_embeddings_of_no_token_and_target_labels_of_none_are_refused(kind: str) -> None:
    with pytest.raises(
        ValueError, match=r"inputs_embeds has the shape .*; give one row of one token or more"
    ):
        make(VaswaniEncoderModel)(inputs_embeds=NOTHING[kind](torch.zeros(ROWS, LENGTH, WIDTH)))
    labels = NOTHING[kind](ids(ROWS, LENGTH))
    with pytest.raises(ValueError, match=r"labels has the shape .*; give one row of one token or more"):
        make(VaswaniForConditionalGeneration)(input_ids=ids(ROWS, LENGTH), labels=labels)


def test_answers_may_be_of_any_integers() -> None:
    model, given = make(VaswaniForQuestionAnswering), right(VaswaniForQuestionAnswering)
    narrow = {name: given[name].int() for name in ("start_positions", "end_positions")}
    assert torch.equal(model(**{**given, **narrow}).loss, model(**given).loss)


def test_regression_and_multi_label_labels_have_their_own_shapes() -> None:
    for fields, good, bad in (
        ({"num_labels": 1}, torch.rand(ROWS), torch.rand(ROWS, 2)),
        ({"num_labels": 1}, torch.rand(ROWS, 1), torch.rand(ROWS + 1)),
        ({"problem_type": "multi_label_classification"}, torch.ones(ROWS, LABELS), torch.ones(ROWS)),
        ({}, torch.ones(ROWS, LABELS), torch.ones(LABELS, ROWS)),
    ):
        config = VaswaniEncoderConfig(**{**ENCODER_FIELDS, **fields})
        model, given = VaswaniForSequenceClassification(config), right(VaswaniForSequenceClassification)
        assert model(**{**given, "labels": good}).loss.isfinite()
        with pytest.raises(ValueError, match="labels has the shape"):
            model(**{**given, "labels": bad})


def test_masks_of_every_legitimate_form_mean_the_same() -> None:
    model, data = tiny_model(), batch()
    expected = model(**data).logits
    shown = data["attention_mask"]
    forms = [shown.bool(), shown.float(), shown.int(), shown.bool()[:, None, None]]
    forms.append((1 - shown[:, None, None]) * torch.finfo(torch.float32).min)
    forms.append(torch.zeros(shown.shape)[:, None, None].masked_fill(shown[:, None, None] == 0, -torch.inf))
    for mask in forms:
        torch.testing.assert_close(model(**{**data, "attention_mask": mask}).logits, expected)


@pytest.mark.parametrize("given", ["argument", "config", "model"])
def test_generate_refuses_a_prompt_in_chunks(given: str) -> None:
    """Of an encoder-decoder, before it encodes anything; causal models compute it."""
    model, sources = tiny_model(), {"input_ids": ids(2, 7)}
    options: dict[str, Any] = {"prefill_chunk_size": 4}
    if given == "config":
        options = {"generation_config": GenerationConfig(**options)}
    elif given == "model":
        model.generation_config.update(**options)
        options = {}
    with (
        patch.object(type(model.model.encoder), "forward", side_effect=AssertionError),
        pytest.raises(ValueError, match=r"prefill_chunk_size=4 .* leave it out"),
    ):
        model.generate(**sources, **options, max_new_tokens=3)
    causal = make(VaswaniForCausalLM)
    expected = causal.generate(**sources, max_new_tokens=3)
    assert causal.generate(**sources, max_new_tokens=3, prefill_chunk_size=4).equal(expected)


@pytest.mark.parametrize("wrong", ["longer", "shorter", "holds 2"])
@pytest.mark.parametrize("with_encoder_outputs", [False, True])
@pytest.mark.parametrize("name", ["attention_mask", "decoder_attention_mask"])
def test_generate_refuses_masks_too(name: str, with_encoder_outputs: bool, wrong: str) -> None:
    model, data = tiny_model(), batch()
    given = {"input_ids": data["input_ids"], "attention_mask": data["attention_mask"]}
    given |= {"decoder_input_ids": tokens(3, 4), "decoder_attention_mask": torch.ones(3, 4).long()}
    if with_encoder_outputs:
        given["encoder_outputs"] = model.model.encoder(given.pop("input_ids"), given["attention_mask"])
    for beams in (1, 3):
        assert model.generate(**given, num_beams=beams, max_new_tokens=3).shape[0] == 3
        with pytest.raises(ValueError, match="attention_mask"):
            model.generate(
                **{**given, name: (SHAPES | MASK)[wrong](given[name])}, num_beams=beams, max_new_tokens=3
            )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_mask_covers_the_cache_and_the_new_tokens(cache: str) -> None:
    model = VaswaniForCausalLM(DECODER).eval()
    row = tokens(2, 6)
    expected = model(row).logits[:, 4:]
    past: Any = DynamicCache() if cache == "dynamic" else StaticCache(model.config, max_cache_len=10)
    model(row[:, :4], past_key_values=past, attention_mask=torch.ones(2, 4))
    for length in (2, 5, 7):
        with pytest.raises(ValueError, match=r"attention_mask has the shape .*expected \[2, 6\]"):
            model(row[:, 4:], past_key_values=past, attention_mask=torch.ones(2, length))
    actual = model(row[:, 4:], past_key_values=past, attention_mask=torch.ones(2, 6)).logits
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("block_size", [3, 16])  # by operators; by C++ where there is a compiler
def test_torch_func_differentiates_sparse_layers(block_size: int) -> None:
    sizes = {"vocab_size": 23, "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2}
    sparse = {"encoder_attention": "sparse", "sparse_block_size": block_size}
    model = VaswaniForMaskedLM(VaswaniEncoderConfig(**sizes, **sparse, encoder_ffn_dim=16)).eval()
    ids = torch.randint(3, 23, (2, 40))
    model(input_ids=ids, labels=ids).loss.backward()
    expected = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (), {"input_ids": ids, "labels": ids}).loss

    found = torch.func.grad(loss)({name: each.detach() for name, each in model.named_parameters()})
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_torch_func_transforms_skip_the_input_checks() -> None:
    model, given = make(VaswaniForMaskedLM), right(VaswaniForMaskedLM)
    for name in ("labels", "smoothing", "attention_mask"):  # the library reads the mask itself
        del given[name]
    expected = model(**given).logits
    one_by_one = lambda *row: model(**{k: v[None] for k, v in zip(given, row, strict=True)}).logits[0]  # noqa: E731
    model.set_attn_implementation("eager")
    actual = torch.func.vmap(one_by_one)(*given.values())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


ATTENTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "sparse": {"encoder_attention": "sparse", "decoder_attention": "sparse", "sparse_block_size": 4},
}


def attention_fields(model_class: type[nn.Module], attention: str) -> dict[str, Any]:
    """The fields of `ATTENTIONS` that the model has."""
    config = MODELS[model_class]
    return {name: value for name, value in ATTENTIONS[attention].items() if hasattr(config or DECODER, name)}


def differentiate(output: ModelOutput) -> None:
    """Backward from the loss, or from the first output of a model without one."""
    loss = output[0]
    (loss if loss.ndim == 0 else loss.sum()).backward()


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("model_class", MODELS)
def test_fake_tensors_take_the_shapes_of_real_ones(
    model_class: type[nn.Module], attention: str, training: bool, masked: bool
) -> None:
    shapes = []
    for context in (nullcontext(), FakeTensorMode()):
        with context:
            model = make(model_class, **attention_fields(model_class, attention), dropout=0.1).train(training)
            given = {
                name: value for name, value in right(model_class).items() if masked or "mask" not in name
            }
            output = model(**given)
            differentiate(output)
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        assert gradients
        shapes.append([each.shape for each in (output[0], *gradients)])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    "model_class", [VaswaniEncoderModel, VaswaniForCausalLM, VaswaniForConditionalGeneration]
)
def test_fake_inputs_leave_a_model_as_it_is(model_class: type[nn.Module], attention: str) -> None:
    """No table that is kept between calls is made of fake tensors."""
    fields = {**attention_fields(model_class, attention), "position_embedding": "sinusoidal"}
    model, given = make(model_class, **fields), right(model_class)
    expected = copy.deepcopy(model)(**given)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {
            name: mode.from_tensor(value) if torch.is_tensor(value) else value
            for name, value in given.items()
        }
        assert model(**fake)[0].shape == expected[0].shape
    assert torch.equal(model(**given)[0], expected[0])
