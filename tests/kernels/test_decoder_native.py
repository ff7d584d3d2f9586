"""Search steps computed in C++ equal those of the modules."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import StoppingCriteriaList

from kernels import test_decoder_step
from kernels.test_decoder_step import add_hook, by_modules, other_values, replace_module
from tiny import batch, tiny_model
from vaswani.inference.decoding import LengthLimits
from vaswani.kernels import decoder_native, search
from vaswani.kernels.decoder_native import NativeStep, can_compute
from vaswani.kernels.int8_linear import Int8Linear
from vaswani.kernels.native_library import why_not_compiled

pytestmark = pytest.mark.skipif(
    why_not_compiled(decoder_native.SOURCE) is not None, reason="nothing can be compiled here"
)

FITTING = {
    "decoder_ffn_dim": 80,
    "encoder_ffn_dim": 48,
}  # whole vectors, and a panel of weights that is cut off


def model_of(**fields: Any) -> Any:
    return tiny_model(**{**FITTING, **fields})


def steps() -> Any:
    """Count the steps that `NativeStep` computes."""
    return patch.object(NativeStep, "logits", autospec=True, side_effect=NativeStep.logits)


LONG = {"max_new_tokens": 40, "min_new_tokens": 36}  # enough to move the cache


def generated(model: Any, data: dict[str, torch.Tensor], **options: Any) -> tuple[list, list | None]:
    return test_decoder_step.generated(model, data, **{**LONG, **options})


def assert_same(model: Any, data: dict[str, torch.Tensor], **options: Any) -> None:
    test_decoder_step.assert_same(model, data, steps, 35, **{**LONG, **options})


COMPUTED = [(name, value) for name, value in other_values() if value != "gelu"]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(("name", "value"), COMPUTED)
def test_every_field_of_the_model_gives_the_result_of_the_modules(
    name: str, value: Any, num_beams: int
) -> None:
    more = {"max_position_embeddings": 64} if value == "learned" else {}
    assert_same(model_of(**{name: value, **more}), batch(rows=5), num_beams=num_beams)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("rows", [*range(1, 9), 33])
def test_any_number_of_rows_gives_the_result_of_the_modules(rows: int, num_beams: int) -> None:
    """Some take weights as they lie, others packed ones, in tiles of any number of rows."""
    assert_same(model_of(norm_order="pre"), batch(rows=rows, source=rows + 3), num_beams=num_beams)


def test_large_products_give_the_result_of_the_modules() -> None:
    model = model_of(decoder_ffn_dim=1072, d_model=96)
    assert_same(model, batch(rows=6), num_beams=4)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize(
    "heads",
    [
        {"d_model": 96, "key_dim": 16},
        {"d_model": 96, "key_dim": 13},
        {"decoder_attention_heads": 8},
        {"d_model": 48, "key_dim": 40},
    ],
    ids=str,
)
def test_keys_and_values_may_have_any_widths(heads: dict[str, int], rows: int, num_beams: int) -> None:
    assert_same(model_of(**heads), batch(rows=rows, source=20), num_beams=num_beams)


def test_two_vocabularies_and_sources_without_padding_are_supported() -> None:
    model = model_of(decoder_vocab_size=131, share_encoder_decoder_embeddings=False, lm_head_bias=True)
    data = batch(rows=2, source=16)
    data["attention_mask"][:] = 1
    assert_same(model, data, num_beams=3)


def test_left_padded_sources_and_a_prompt_are_supported() -> None:
    data = batch(rows=3)
    data["attention_mask"] = data["attention_mask"].flip(1)
    prompt = torch.tensor([[1, 9, 8, 7]] * 3)
    assert_same(model_of(), data, num_beams=3, decoder_input_ids=prompt)


def test_samples_share_their_source() -> None:
    model, data = model_of(), batch(rows=4)
    options = {"do_sample": True, "num_return_sequences": 3}
    torch.manual_seed(3)
    with steps() as counted:
        found = generated(model, data, **options)
    assert counted.called
    torch.manual_seed(3)
    with by_modules():
        assert generated(model, data, **options) == found


def test_threads_share_the_work() -> None:
    model, data = model_of(), batch(rows=5)
    expected = generated(model, data, num_beams=4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with steps() as counted:
            sequences, scores = generated(model, data, num_beams=4)
    finally:
        torch.set_num_threads(before)
    assert counted.called
    assert sequences == expected[0]
    assert scores == pytest.approx(expected[1], rel=1e-5)


def test_weights_may_change_between_searches() -> None:
    model, data = model_of(), batch(rows=5)
    before = generated(model, data, num_beams=4)
    model.model.decoder.layers[0].fc1.weight.data.mul_(3.0)
    assert generated(model, data, num_beams=4) != before
    assert_same(model, data, num_beams=4)


def quantize_one(model: Any) -> None:
    layer = model.model.decoder.layers[0]
    layer.fc1 = Int8Linear(layer.fc1)


def another_activation(model: Any) -> None:
    for layer in model.model.decoder.layers:
        layer.activation_fn = torch.nn.GELU()


@pytest.mark.parametrize("change", [add_hook, replace_module, quantize_one, another_activation])
def test_changed_models_fall_back_to_the_modules(change: Any) -> None:
    model, data = model_of(), batch(rows=3)
    before = generated(model, data, num_beams=3)
    change(model)
    with steps() as counted:
        after = generated(model, data, num_beams=3)
    assert not counted.called
    assert after != before


def test_other_dtypes_and_widths_are_not_computed_natively() -> None:
    assert can_compute(model_of())
    assert not can_compute(model_of().double())
    assert not can_compute(model_of().bfloat16())
    assert not can_compute(model_of(decoder_ffn_dim=52))
    assert not can_compute(model_of(d_model=24))


def test_without_a_compiler_pytorch_is_used() -> None:
    model, data = model_of(), batch(rows=3)
    expected = generated(model, data, num_beams=3)
    with patch.object(decoder_native, "library", lambda: None), steps() as counted:
        sequences, scores = generated(model, data, num_beams=3)
    assert not counted.called
    assert sequences == expected[0]
    assert scores == pytest.approx(expected[1], rel=1e-4)


def test_a_model_that_overflows_raises_an_error() -> None:
    model, data = model_of(), batch(rows=3)
    model.lm_head.weight = torch.nn.Parameter(torch.full_like(model.lm_head.weight, float("nan")))
    step_logits = []

    def logits(self: Any, *arguments: Any) -> torch.Tensor:
        step_logits.append(real(self, *arguments).clone())
        return step_logits[-1]

    real = NativeStep.logits
    with patch.object(NativeStep, "logits", logits):
        generated(model, data, num_beams=1)
    assert step_logits
    assert all(bool(each.isnan().all()) for each in step_logits)


@pytest.mark.parametrize("token", [-1, 10_000])
def test_a_token_without_an_embedding_is_an_error_as_in_pytorch(token: int) -> None:
    """Samples that have ended are padded, as long as others of their source go on."""
    model, data = model_of(), batch(rows=1)
    options: dict[str, Any] = {"do_sample": True, "num_return_sequences": 6, "min_new_tokens": 2}
    options |= {"pad_token_id": token, "eos_token_id": list(range(2, 40))}
    torch.manual_seed(0)
    with (
        steps() as counted,
        pytest.raises(IndexError, match=rf"token {token} has no embedding; there are \d+"),
    ):
        generated(model, data, **options)
    assert counted.called
    torch.manual_seed(0)
    with patch.object(search, "can_compute", lambda model: False), pytest.raises(IndexError):
        generated(model, data, **options)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_cache_may_move_between_steps(num_beams: int) -> None:
    """Also when sources leave the batch. What lay where it was before is NaN."""
    model, data = model_of(), batch(rows=6)
    limits = LengthLimits(torch.tensor([4, 25, 8, 30, 12, 6]))
    options = {"num_beams": num_beams, "stopping_criteria": StoppingCriteriaList([limits])}
    with by_modules():
        expected, expected_scores = generated(model, data, **options)
    rows = []

    def moving(self: Any, cache: Any, token_ids: torch.Tensor, mask: Any) -> torch.Tensor:
        rows.append(len(token_ids))
        for layer in (*cache.tree.layers, *cache.cross_attention_cache.layers):
            for name in ("keys", "values"):
                before = getattr(layer, name)
                setattr(layer, name, before.clone())
                before.fill_(torch.nan)
        return real(self, cache, token_ids, mask)

    real = NativeStep.logits
    with patch.object(NativeStep, "logits", moving):
        sequences, scores = generated(model, data, **options)
    assert rows[0] == 6 * num_beams
    assert rows[-1] == num_beams
    assert sequences == expected
    assert scores == pytest.approx(expected_scores, rel=1e-4) if scores else expected_scores is None


def test_a_search_prefers_the_native_decoder() -> None:
    assert search.can_compute is can_compute
