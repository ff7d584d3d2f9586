"""`output_attentions` gives the weights of eager attention with any kernel, and changes nothing else."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import vaswani.model.modeling_vaswani_decoder as decoders
import vaswani.model.modeling_vaswani_encoder as encoders
from kernels.test_decoder_step import steps
from kernels.test_plain_path import without_kernels
from tiny import TINY, enable_activation_checkpointing, tiny_model, tokens
from toy_translation import toy_model, toy_sources, toy_tokenizer
from vaswani import (
    Translator,
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
)
from vaswani.model.attention import VaswaniAttention
from vaswani.model.sparse_attention import dense_mask

SPARSE = {"sparse_block_size": 2, "sparse_window_blocks": 1, "sparse_global_blocks": 1}
LENGTH = 14
FEATURES = {  # of each configuration: its stacks and its classes
    VaswaniConfig: (("encoder", "decoder"), [VaswaniForConditionalGeneration]),
    VaswaniEncoderConfig: (
        ("encoder",),
        [
            *(encoders.VaswaniEncoderModel, encoders.VaswaniForMaskedLM, encoders.VaswaniForPreTraining),
            *(encoders.VaswaniForSequenceClassification, encoders.VaswaniForTokenClassification),
            *(encoders.VaswaniForMultipleChoice, encoders.VaswaniForNextSentencePrediction),
            encoders.VaswaniForQuestionAnswering,
        ],
    ),
    VaswaniDecoderConfig: (
        ("decoder",),
        [
            *(decoders.VaswaniDecoderModel, VaswaniForCausalLM),
            *(decoders.VaswaniDecoderForSequenceClassification,),
            *(decoders.VaswaniDecoderForTokenClassification, decoders.VaswaniDecoderForQuestionAnswering),
        ],
    ),
}
CASES = [(config, model) for config, (_, models) in FEATURES.items() for model in models]


def build(config_class: Any, model_class: Any, attention: str = "full", kernel: str = "sdpa") -> Any:
    stacks, _ = FEATURES[config_class]
    names = {name for name in TINY if not name.startswith(("encoder", "decoder")) or name[:7] in stacks}
    fields = {name: TINY[name] for name in names}
    if attention == "sparse":
        fields |= {**SPARSE, **{f"{stack}_attention": "sparse" for stack in stacks}}
    torch.manual_seed(0)
    return model_class._from_config(config_class(**fields), attn_implementation=kernel).eval()


def inputs_of(model: Any, padding: str = "right") -> dict[str, torch.Tensor]:
    """Three texts, of which two are shorter."""
    ids = tokens(3, LENGTH)
    mask = torch.ones_like(ids)
    for row in (1, 2):
        hidden = slice(0, 2 * row) if padding == "left" else slice(LENGTH - 2 * row, None)
        mask[row, hidden] = 0
    data = {"input_ids": ids * mask, "attention_mask": mask}
    if isinstance(model, encoders.VaswaniForMultipleChoice):
        return {name: value[:, None] for name, value in data.items()}
    if model.config.is_encoder_decoder:
        data["decoder_input_ids"] = tokens(3, 9)
    return data


def weights_of(output: Any) -> dict[str, tuple[torch.Tensor, ...]]:
    return {name: value for name, value in output.items() if name.endswith("attentions")}


def visible(model: Any, kind: str, layer: int, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """Which keys a query may see, from the patterns and the masks alone: bool [B, 1 or H, Q, K]."""
    stack = "encoder" if kind == "encoder_attentions" or model.config.stacks == ("encoder",) else "decoder"
    mask = data["attention_mask"].view(3, 1, 1, LENGTH).bool()
    if kind == "cross_attentions":
        return mask.expand(-1, -1, data["decoder_input_ids"].shape[1], -1)
    length = LENGTH
    if kind == "decoder_attentions":
        length = data["decoder_input_ids"].shape[1]
        mask = torch.ones(3, 1, 1, length, dtype=torch.bool)
    pattern = model.config.sparse_pattern(stack, layer)
    if pattern is not None:
        return dense_mask(pattern, length, length, padding_mask=mask[:, 0, 0])
    seen = torch.ones(length, length, dtype=torch.bool)
    return mask & (seen.tril() if stack == "decoder" else seen)


@pytest.mark.parametrize("attention", ["full", "sparse"])
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(("config_class", "model_class"), CASES, ids=lambda each: each.__name__)
@torch.no_grad()
def test_every_head_returns_one_tensor_per_layer(
    config_class: Any, model_class: Any, padding: str, attention: str
) -> None:
    """[B, H, Q, K]: rows sum to 1 over what is visible and nothing else has weight, as of eager attention."""
    model = build(config_class, model_class, attention)
    data = inputs_of(model, padding)
    before = model.config.to_dict()
    plain, output = model(**data), model(**data, output_attentions=True)
    eager = build(config_class, model_class, attention, "eager")(**data, output_attentions=True)
    assert not weights_of(plain)
    assert len(weights_of(output)) == (3 if model.config.is_encoder_decoder else 1)
    for kind, of_layers in weights_of(output).items():
        assert len(of_layers) == 2
        for layer, weights in enumerate(of_layers):
            assert weights.dim() == 4
            shown = visible(model, kind, layer, data).expand_as(weights)
            assert ((weights > 0) == shown).all()
            sums = shown.any(-1).to(weights.dtype)  # a row that sees nothing has no weights
            torch.testing.assert_close(weights.sum(-1), sums)
            torch.testing.assert_close(weights, eager[kind][layer])
    for name in plain:
        if isinstance(plain[name], torch.Tensor):
            kept = data["attention_mask"].bool() if plain[name].shape[:2] == (3, LENGTH) else ...
            torch.testing.assert_close(output[name][kept], plain[name][kept], rtol=1e-4, atol=1e-4)
    assert model.config.to_dict() == before
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("attention", ["full", "sparse"])
@pytest.mark.parametrize("config_class", FEATURES, ids=lambda each: each.__name__)
@torch.no_grad()
def test_the_weights_times_the_values_are_the_outputs(config_class: Any, attention: str) -> None:
    """Of each layer, in the call that asks and in one that does not, by the modules around the attention."""
    model = build(config_class, FEATURES[config_class][1][0], attention)
    data = inputs_of(model)
    weights = weights_of(model(**data, output_attentions=True))
    for wanted in (True, False):
        with values_and_outputs(model) as seen:
            model(**data, output_attentions=wanted)
        assert len(seen) == 2 * len(weights)
        for name, (values, outputs) in seen.items():
            of_layer = weights[kind_of(name, weights)][int(re.search(r"\d+", name)[0])]
            heads = values.unflatten(2, (of_layer.shape[1], -1)).transpose(1, 2)
            expected = (of_layer @ heads).transpose(1, 2).flatten(2)
            sees = of_layer.sum((1, 3)) > 0
            torch.testing.assert_close(outputs[sees], expected[sees], rtol=1e-4, atol=1e-4)


@contextmanager
def values_and_outputs(model: Any) -> Iterator[dict[str, list[torch.Tensor]]]:
    """What the value projection of each attention returns, and what its output projection reads."""
    seen: dict[str, list[torch.Tensor]] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, VaswaniAttention):
            value, output = module.v_proj, module.out_proj
            hooks.append(value.register_forward_hook(lambda m, x, y, n=name: seen.update({n: [y]})))
            hooks.append(output.register_forward_pre_hook(lambda m, x, n=name: seen[n].append(x[0])))
    yield seen
    for hook in hooks:
        hook.remove()


def kind_of(name: str, weights: dict[str, Any]) -> str:
    """The output that holds the weights of the attention with this name."""
    if len(weights) == 1:
        return "attentions"
    if "encoder_attn" in name:
        return "cross_attentions"
    return "encoder_attentions" if ".encoder." in name else "decoder_attentions"


@pytest.mark.parametrize("attention", ["full", "sparse"])
@pytest.mark.parametrize(
    "config_class", [VaswaniConfig, VaswaniDecoderConfig], ids=lambda each: each.__name__
)
@torch.no_grad()
def test_step_by_step_the_weights_are_the_rows_of_one_pass(config_class: Any, attention: str) -> None:
    model_class = {VaswaniConfig: VaswaniForConditionalGeneration, VaswaniDecoderConfig: VaswaniForCausalLM}
    model = build(config_class, model_class[config_class], attention)
    data = inputs_of(model, "left")
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    data.pop("decoder_input_ids", None)
    generated = model.generate(**data, **options, output_attentions=True)
    plain = model.generate(**data, **{**options, "return_dict_in_generate": False})
    assert generated.sequences.tolist() == plain.tolist()
    past = generated.sequences[:, :-1]
    if config_class is VaswaniConfig:
        whole = model(**data, decoder_input_ids=past, output_attentions=True)
        kinds = {"decoder_attentions": whole.decoder_attentions, "cross_attentions": whole.cross_attentions}
        assert len(generated.encoder_attentions) == 2
    else:
        mask = torch.nn.functional.pad(data["attention_mask"], (0, 5), value=1)
        kinds = {"attentions": model(past, attention_mask=mask, output_attentions=True).attentions}
    for kind, of_layers in kinds.items():
        assert len(generated[kind]) == 6
        for step, of_step in enumerate(generated[kind]):
            for whole_weights, weights in zip(of_layers, of_step, strict=True):
                last = whole_weights.shape[2] - 6 + step
                expected = whole_weights[:, :, last : last + 1]
                torch.testing.assert_close(weights[:, :, -1:], expected[..., : weights.shape[3]])


def test_with_gradient_checkpointing_weights_and_their_gradients_are_the_same() -> None:
    model, results = build(VaswaniConfig, VaswaniForConditionalGeneration).train(), []
    data = inputs_of(model)
    for checkpointed in (False, True):
        if checkpointed:
            enable_activation_checkpointing(model)
        model.zero_grad()
        output = model(**data, use_cache=False, output_attentions=True)
        weights = [each for of_layers in weights_of(output).values() for each in of_layers]
        assert len(weights) == 6
        (output.logits.square().sum() + sum(each.square().sum() for each in weights)).backward()
        results.append([*weights, *(parameter.grad.clone() for parameter in model.parameters())])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_requesting_weights_disables_the_fast_step_for_that_call_only() -> None:
    model, data = tiny_model(), {"input_ids": tokens(3, 7)}
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    counts, sequences = [], []
    for asked in (False, True, False):
        with steps() as counted:
            found = model.generate(**data, **options, output_attentions=asked, return_dict_in_generate=asked)
        counts.append(counted.call_count)
        sequences.append((found.sequences if asked else found).tolist())
    assert counts == [11, 0, 11]
    assert sequences[0] == sequences[1] == sequences[2]


def test_threads_with_and_without_requested_weights_can_share_a_model() -> None:
    model = tiny_model()
    data = inputs_of(model)
    expected = model(**data).logits
    weights = model(**data, output_attentions=True).cross_attentions[0]

    def call(number: int) -> bool:
        output = model(**data, output_attentions=number % 2 == 0)
        torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-5)
        if number % 2 == 0:
            torch.testing.assert_close(output.cross_attentions[0], weights)
        return bool(output.cross_attentions)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(call, range(40))) == [True, False] * 20


@pytest.mark.parametrize("attention", ["full", "sparse"])
def test_without_kernels_the_weights_are_the_same(attention: str) -> None:
    model = build(VaswaniConfig, VaswaniForConditionalGeneration, attention)
    data = inputs_of(model)
    output = weights_of(model(**data, output_attentions=True))
    with without_kernels():
        plain = weights_of(model(**data, output_attentions=True))
    torch.testing.assert_close(output, plain)


@pytest.mark.parametrize("config_class", FEATURES, ids=lambda each: each.__name__)
def test_output_attentions_in_the_configuration_applies_to_every_call(config_class: Any, tmp_path) -> None:
    """Set later, as an argument, or saved: the kernel stays the same, and a call can override it."""
    model = build(config_class, FEATURES[config_class][1][0])
    data = inputs_of(model)
    expected = weights_of(model(**data, output_attentions=True))
    model.config.output_attentions = True
    torch.testing.assert_close(weights_of(model(**data)), expected)
    assert not weights_of(model(**data, output_attentions=False))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"
    torch.testing.assert_close(weights_of(again.eval()(**data)), expected)
    never = type(model).from_pretrained(tmp_path, output_attentions=False)
    assert not weights_of(never(**data))


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_do_not_depend_on_the_configuration(num_beams: int) -> None:
    tokenizer, texts = toy_tokenizer(), toy_sources(4, seed=5)
    found = []
    for asked in (False, True):
        model = toy_model()
        model.config.output_attentions = asked
        model.generation_config.output_attentions = asked or None
        found.append(Translator(model, tokenizer, num_beams=num_beams)(texts))
    assert found[0] == found[1]
    assert any(found[0])
