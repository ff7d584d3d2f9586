"""A fast decoder step equals the modules, and falls back to them where needed."""

from typing import Any, get_args
from unittest.mock import patch

import pytest
import torch
from accelerate import cpu_offload
from peft import PrefixTuningConfig, get_peft_model
from torch import nn

from tiny import batch, tiny_config, tiny_model
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.kernels import search
from vaswani.kernels.decoder_step import DecoderStep
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.model.stacks import VaswaniDecoderLayer, VaswaniLayer

NOT_OF_THE_MODEL = {
    "return_dict",
    "tie_word_embeddings",
    "is_encoder_decoder",
    "output_attentions",
    "use_cache",
}


def other_values() -> list[tuple[str, Any]]:
    """Each yes or no, and each choice, of the configuration with a value that is not its default."""
    config, found = tiny_config(), []
    for cls in (VaswaniFamilyConfig, VaswaniConfig):
        for name, kind in vars(cls)["__annotations__"].items():
            now = getattr(config, name, None)
            if not isinstance(now, bool | str) or name in NOT_OF_THE_MODEL or name.endswith("attention"):
                continue
            choices = (True, False) if isinstance(now, bool) else get_args(kind)
            found += [(name, value) for value in choices if type(value) is type(now) and value != now]
    return [*found, ("activation_function", "gelu"), ("activation_function", "silu"), ("key_dim", 32)]


def generated(model: Any, data: dict[str, torch.Tensor], **options: Any) -> tuple[list, list[float] | None]:
    """The tokens and, of beams, the scores; without the scores, sources that are done leave the batch."""
    given = {"max_new_tokens": 24, "do_sample": False, "min_new_tokens": 12, **options}
    given |= {name: data[name] for name in ("input_ids", "attention_mask")}
    if options.get("num_beams", 1) == 1:
        return model.generate(**given).tolist(), None
    scored = model.generate(**given, return_dict_in_generate=True, output_scores=True)
    return [*scored.sequences.tolist(), *model.generate(**given).tolist()], scored.sequences_scores.tolist()


def by_modules() -> Any:
    return patch.object(search, "is_plain", lambda model: False)


def steps() -> Any:
    """Count the steps that `DecoderStep` computes."""
    return patch.object(DecoderStep, "logits", autospec=True, side_effect=DecoderStep.logits)


def assert_same(
    model: Any, data: dict[str, torch.Tensor], count: Any = steps, at_least: int = 11, **options: Any
) -> None:
    """The search by steps, which `count` counts, finds what the modules find."""
    with count() as counted:
        sequences, scores = generated(model, data, **options)
    assert counted.call_count >= at_least
    with by_modules(), count() as counted:
        expected, expected_scores = generated(model, data, **options)
    assert not counted.called
    assert sequences == expected
    assert scores == pytest.approx(expected_scores, rel=1e-4) if scores else expected_scores is None


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(("name", "value"), other_values())
def test_every_field_of_the_model_gives_the_result_of_the_modules(
    name: str, value: Any, num_beams: int
) -> None:
    more = {"max_position_embeddings": 64} if value == "learned" else {}
    assert_same(tiny_model(**{name: value, **more}).double(), batch(rows=5), num_beams=num_beams)


@pytest.mark.parametrize("rows", [1, 70])  # many rows choose other kernels
@pytest.mark.parametrize("num_beams", [1, 4])
def test_any_number_of_rows_gives_the_result_of_the_modules(rows: int, num_beams: int) -> None:
    data = batch(rows=5)
    data = {name: value.repeat(14, 1)[:rows] for name, value in data.items()}
    assert_same(tiny_model().double(), data, num_beams=num_beams)


@patch.object(search, "can_compute", lambda model: False)  # C++ goes first
def test_packed_float32_weights_give_the_result_of_the_modules() -> None:
    model = tiny_model(d_model=512, decoder_ffn_dim=512, norm_order="pre")
    assert_same(model, batch(rows=6), num_beams=4)


def test_two_vocabularies_and_a_source_without_padding_are_supported() -> None:
    model = tiny_model(decoder_vocab_size=50, share_encoder_decoder_embeddings=False).double()
    data = batch(rows=2)
    data["attention_mask"][:] = 1
    assert_same(model, data, num_beams=3)


def test_sampling_draws_the_same() -> None:
    model, data = tiny_model().double(), batch(rows=4)
    options = {"do_sample": True, "num_return_sequences": 2, "min_new_tokens": 12}
    torch.manual_seed(3)
    with steps() as counted:
        found = generated(model, data, **options)
    assert counted.called
    torch.manual_seed(3)
    with by_modules():
        assert generated(model, data, **options) == found


class Wider(nn.Module):
    """What an adapter is: a module in another's place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 3.0 * self.inner(states)


def add_hook(model: Any) -> None:
    model.model.decoder.layers[1].fc1.register_forward_hook(lambda module, inputs, output: 3.0 * output)


def replace_module(model: Any) -> None:
    layer = model.model.decoder.layers[0]
    layer.fc2 = Wider(layer.fc2)


def replace_forward(model: Any) -> None:
    linear = model.model.decoder.layers[0].encoder_attn.v_proj
    plain = linear.forward
    linear.forward = lambda states: 3.0 * plain(states)


def favour(module: Any, inputs: Any, output: Any) -> None:
    """A hook that raises the score of a token."""
    output.logits[..., 7] += 3.0


def double_states(module: Any, inputs: Any, output: Any) -> None:
    output.last_hidden_state.mul_(-2.0)


class Favouring(VaswaniForConditionalGeneration):
    """A subclass written by a user."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        favour(self, args, output)
        return output


def derive(model: Any) -> None:
    model.__class__ = Favouring


def hook_model(model: Any) -> None:
    model.register_forward_hook(favour)


def hook_base_model(model: Any) -> None:
    model.model.register_forward_hook(double_states)


def hook_activation(model: Any) -> None:
    model.model.decoder.layers[0].activation_fn.register_forward_hook(lambda module, inputs, output: -output)


def replace_forward_of_model(model: Any) -> None:
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = plain(*args, **kwargs)
        favour(model, args, output)
        return output

    model.forward = forward


def leave_out_a_layer(model: Any) -> None:
    layers = model.model.decoder.layers
    model.model.decoder.layers = nn.ModuleList([layers[0], *layers[2:]])


def swap_layers(model: Any) -> None:
    layers = model.model.decoder.layers
    model.model.decoder.layers = nn.ModuleList([layers[1], layers[0], *layers[2:]])


def replace_activation(model: Any) -> None:
    model.model.decoder.layers[1].activation_fn = nn.Tanh()


class OtherAttention(nn.Module):
    """Has nothing but a call."""

    def forward(self, states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        return -2.0 * states.flip(-1), None


def replace_attention(model: Any) -> None:
    model.model.decoder.layers[1].encoder_attn = OtherAttention()


def learn_activation(model: Any) -> None:
    for layer in model.model.decoder.layers:
        layer.activation_fn = nn.PReLU(init=-2.0, dtype=torch.float64)


def sharpen_attention(model: Any) -> None:
    for layer in model.model.decoder.layers:
        layer.encoder_attn.scaling *= 20


def move_norms(model: Any) -> None:
    model.model.decoder.layers[1].norm_first ^= True


def replace_method(model: Any) -> None:
    model.model.decoder.layers[1].feed_forward = torch.neg


CHANGES = [
    *(add_hook, replace_module, replace_forward, derive, hook_model, hook_base_model, hook_activation),
    *(replace_forward_of_model, leave_out_a_layer, swap_layers, replace_activation, learn_activation),
    *(sharpen_attention, move_norms, replace_method, replace_attention),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_changes_to_the_model_take_effect(change: Any, num_beams: int) -> None:
    model, data = tiny_model(decoder_layers=3).double(), batch(rows=3)
    before = generated(model, data, num_beams=num_beams)
    change(model)
    with steps() as counted:
        after = generated(model, data, num_beams=num_beams)
    assert not counted.called
    assert after != before
    whole, scores = generated(model, data, num_beams=num_beams, use_cache=False)
    assert after == (whole, scores and pytest.approx(scores))


@pytest.mark.parametrize("owner", [VaswaniLayer, VaswaniDecoderLayer])
def test_a_replaced_method_of_a_class_takes_effect(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = tiny_model().double(), batch(rows=3)
    before = generated(model, data, num_beams=3)
    monkeypatch.setattr(owner, "feed_forward", lambda self, states: states.flip(-1), raising=False)
    after = generated(model, data, num_beams=3)
    assert after[1] != pytest.approx(before[1])
    assert after[1] == pytest.approx(generated(model, data, num_beams=3, use_cache=False)[1])


def test_a_hook_to_all_modules_is_called_in_each_step() -> None:
    model, calls = tiny_model(), []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: calls.append(1) if module is model else None
    )
    with hook:
        generated(model, batch(rows=3))
    assert len(calls) >= 12


@pytest.mark.parametrize("beams", [1, 4])
def test_offloaded_weights_give_the_same_tokens(beams: int) -> None:
    model, data = tiny_model(), batch(rows=3)
    expected = generated(model, data, num_beams=beams)
    cpu_offload(model, torch.device("cpu"))
    assert model.device.type == "meta"
    assert generated(model, data, num_beams=beams) == expected


def test_a_decoder_in_training_mode_drops_in_each_step() -> None:
    """As uncertainty is estimated by dropout (Gal and Ghahramani, 2016)."""
    model = tiny_model(dropout=0.5)
    model.model.decoder.train()
    with steps() as counted:
        found = [generated(model, batch(rows=3))[0] for _ in range(2)]
    assert not counted.called
    assert found[0] != found[1]


def test_prefix_tuning_of_peft_continues_its_own_cache() -> None:
    if CACHE_NAME != "past_key_values":
        pytest.skip("PEFT gives its cache by the old name, beside the new one")
    model, data = tiny_model(encoder_attention_heads=2, decoder_attention_heads=2), batch(rows=4)
    prefix = PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
    adapted = get_peft_model(model, prefix).eval()
    written = torch.tensor(generated(adapted, data)[0])
    assert len(generated(adapted, data, num_beams=2)[0]) == 2 * 4
    sources = {name: data[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = adapted(**sources, decoder_input_ids=written[:, :-1]).logits
    logits[:, :12, model.config.eos_token_id] = -torch.inf  # `min_new_tokens`
    assert torch.equal(logits.argmax(-1)[:, :12], written[:, 1:13])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_reference_is_not_replaced(implementation: str) -> None:
    with steps() as counted:
        generated(tiny_model(implementation), batch(rows=3))
    assert counted.called == (implementation == "sdpa")


def test_autocast_and_float16_fall_back_to_the_modules() -> None:
    data = batch(rows=3)
    with steps() as counted, torch.autocast("cpu", torch.bfloat16):
        generated(tiny_model(), data)
    assert not counted.called
    with steps() as counted:
        generated(tiny_model().half(), data)
    assert not counted.called


def test_a_prompt_with_padding_falls_back_to_the_modules() -> None:
    model, data = tiny_model(), batch(rows=2)
    prompt = torch.tensor([[0, 1, 9], [1, 7, 9]])
    options = {"decoder_input_ids": prompt, "decoder_attention_mask": (prompt != 0).long()}
    with steps() as counted:
        found = generated(model, data, **options)
    assert not counted.called
    with by_modules():
        assert generated(model, data, **options) == found


def test_a_plain_forward_call_does_not_use_the_fast_step() -> None:
    assert VaswaniForConditionalGeneration.forward.__wrapped__
    model = tiny_model()
    data = batch(rows=2)
    with steps() as counted:
        model(**data)  # no search
    assert not counted.called
