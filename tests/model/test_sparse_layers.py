"""A model with sparse layers computes the configured pattern in every mode of use."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from tiny import (
    GRAPHS_ALONE,
    assert_sdpa_equals_eager,
    batch,
    enable_activation_checkpointing,
    tiny_config,
    tiny_model,
    tokens,
)
from vaswani import VaswaniEncoderConfig, VaswaniEncoderModel, VaswaniForConditionalGeneration
from vaswani.model.compatibility import CACHE_NAME

SPARSE = {
    "encoder_attention": "sparse",
    "decoder_attention": "sparse",
    "sparse_block_size": 4,
    "sparse_window_blocks": 3,
    "sparse_global_blocks": 1,
    "sparse_random_blocks": 1,
}
ALTERNATING = {**SPARSE, "encoder_attention": ["full", "sparse"], "decoder_attention": ["sparse", "full"]}
WITH_GLOBAL_TOKENS = {**SPARSE, "sparse_global_blocks": 0, "sparse_global_tokens": 3}


def long_batch(**fields) -> dict[str, torch.Tensor]:
    return batch(source=61, target=50, **fields)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "fields", [SPARSE, ALTERNATING, WITH_GLOBAL_TOKENS], ids=["all", "alternating", "global tokens"]
)
def test_the_kernel_equals_the_reference_in_outputs_and_gradients(fields: dict, side: str) -> None:
    model, data = tiny_model("eager", **fields), long_batch()
    if side == "left":
        data["input_ids"], data["attention_mask"] = data["input_ids"].flip(1), data["attention_mask"].flip(1)
    assert_sdpa_equals_eager(model, data)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "change",
    [
        {"encoder_attention": "full"},
        {"encoder_attention": ["full", "sparse"]},
        {"decoder_attention": "full"},
        {"sparse_block_size": 5},
        {"sparse_window_blocks": 5},
        {"sparse_global_blocks": 2},
        {"sparse_global_blocks": 0, "sparse_global_tokens": 4, "sparse_seed": 1},
        {"sparse_random_blocks": 2},
        {"sparse_seed": 1},
    ],
    ids=str,
)
def test_every_field_changes_the_result(change: dict, implementation: str) -> None:
    data, results = long_batch(), []
    weights = tiny_model(**SPARSE).state_dict()
    for fields in (SPARSE, {**SPARSE, **change}):
        model = tiny_model(implementation, **fields)
        model.load_state_dict(weights)
        results.append(model(**data).logits)
    assert not torch.allclose(*results, atol=1e-4)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "fields", [SPARSE, WITH_GLOBAL_TOKENS, {**SPARSE, "sparse_random_blocks": 3}], ids=str
)
def test_a_sequence_does_not_depend_on_its_batch(fields: dict, implementation: str) -> None:
    model = tiny_model(implementation, **fields).double()
    encoder = model.get_encoder()
    lengths, ids = [61, 9, 61, 30, 0, 29, 57], tokens(7, 64)
    mask = (torch.arange(64) < torch.tensor(lengths)[:, None]).long()
    states = encoder(ids, attention_mask=mask).last_hidden_state
    rows = [row for row, length in enumerate(lengths) if length]
    alone = [encoder(ids[row : row + 1, : lengths[row]]).last_hidden_state[0] for row in rows]
    together = [states[row, : lengths[row]] for row in rows]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)
    upstream, weights = [torch.randn_like(each) for each in alone], [*encoder.parameters()]
    gradients = [torch.autograd.grad(outputs, weights, upstream) for outputs in (together, alone)]
    torch.testing.assert_close(*gradients)


def test_global_tokens_that_fill_blocks_are_global_blocks() -> None:
    data, weights = long_batch(), tiny_model(**SPARSE).state_dict()
    results = []
    for fields in ({"sparse_global_blocks": 2}, {"sparse_global_blocks": 0, "sparse_global_tokens": 8}):
        model = tiny_model(**{**SPARSE, **fields})
        model.load_state_dict(weights)
        results.append(model(**data).logits)
    torch.testing.assert_close(*results)


def test_inputs_within_the_window_have_full_attention() -> None:
    data, sparse = batch(source=7, target=8), tiny_model(**SPARSE)
    full = tiny_model()
    full.load_state_dict(sparse.state_dict())
    torch.testing.assert_close(sparse(**data).logits, full(**data).logits)


def test_requested_attention_weights_follow_the_pattern() -> None:
    model, data = tiny_model("sdpa", **SPARSE), long_batch(rows=1)
    output = model(**data, output_attentions=True)
    for layer, weights in enumerate(output.encoder_attentions):
        visible = model.config.sparse_pattern("encoder", layer).to_dense(61)
        assert ((weights[0] > 0) == visible).all()
    torch.testing.assert_close(output.logits, model(**data).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fields", [{}, SPARSE, ALTERNATING, WITH_GLOBAL_TOKENS])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cached_equals_uncached_decoding(fields: dict, implementation: str, cache: str) -> None:
    model, data = tiny_model(implementation, **fields), long_batch()
    source = {"input_ids": data["input_ids"], "attention_mask": data["attention_mask"]}
    prompt = tokens(3, 9)
    prompt_mask = torch.ones_like(prompt)
    prompt_mask[1, :4] = 0
    options = {
        "decoder_input_ids": prompt,
        "decoder_attention_mask": prompt_mask,
        "max_new_tokens": 25,
        "do_sample": False,
        "suppress_tokens": [2],
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    expected = model.generate(**source, **options, use_cache=False)
    actual = model.generate(**source, **options, cache_implementation=None if cache == "dynamic" else cache)
    assert actual.sequences.tolist() == expected.sequences.tolist()
    for ours, reference in zip(actual.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_a_step_of_several_tokens_continues_a_cache() -> None:
    model, data = tiny_model(**SPARSE), long_batch(rows=2)
    labels = tokens(2, 50)
    source = {name: data[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = model(**source, decoder_input_ids=labels).logits
        first = model(**source, decoder_input_ids=labels[:, :21], use_cache=True)
        cache, logits = first[CACHE_NAME], [first.logits]
        for start, end in ((21, 22), (22, 40), (40, 50)):
            step = model(**source, decoder_input_ids=labels[:, start:end], past_key_values=cache)
            logits.append(step.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_beams", [2, 4])
def test_beams_are_those_of_the_reference(num_beams: int) -> None:
    model, data = tiny_model("eager", **ALTERNATING), long_batch()
    source = {name: data[name] for name in ("input_ids", "attention_mask")}
    options = {"num_beams": num_beams, "max_new_tokens": 20, "suppress_tokens": [2]}
    expected = model.generate(**source, **options, use_cache=False)
    model.set_attn_implementation("sdpa")
    assert model.generate(**source, **options).tolist() == expected.tolist()


def test_training_differs_from_evaluation_only_by_dropout() -> None:
    data, weights = long_batch(), tiny_model(**SPARSE).state_dict()
    results = []
    for p in (0.0, 0.4):
        model = tiny_model(**SPARSE, attention_dropout=p)
        model.load_state_dict(weights)
        results.append((model.eval()(**data).logits, model.train()(**data).logits))
    assert torch.equal(*results[0])
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.allclose(*results[1], atol=1e-3)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_gradient_checkpointing_is_bit_identical(p: float) -> None:
    model, data = tiny_model(**SPARSE, attention_dropout=p).train(), long_batch()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            enable_activation_checkpointing(model)
        torch.manual_seed(0)
        model.zero_grad()
        model(**data).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_training_step_compiles_whole(implementation: str) -> None:
    model, data = tiny_model(implementation, **ALTERNATING), long_batch()
    expected = model(**data).loss
    actual = torch.compile(model, fullgraph=True, backend=GRAPHS_ALONE)(**data).loss
    torch.testing.assert_close(actual, expected)
    actual.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype: torch.dtype) -> None:
    model, data = tiny_model(**SPARSE), long_batch()
    expected = model(**data).logits
    with torch.autocast("cpu", dtype):
        loss = model(**data).loss
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    torch.testing.assert_close(model.to(dtype)(**data).logits.float(), expected, rtol=0.1, atol=0.15)


def test_a_source_of_only_padding_is_finite_and_changes_no_other_row() -> None:
    model, data = tiny_model(**SPARSE), long_batch()
    expected = model(**data).logits
    data["attention_mask"][2] = 0
    output = model(**data)
    torch.testing.assert_close(output.logits[:2], expected[:2])
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow
def test_a_saved_model_stays_sparse_also_in_another_process(tmp_path: Path) -> None:
    model, data = tiny_model(**ALTERNATING), long_batch(rows=1)
    model.save_pretrained(tmp_path)
    expected = model(**data).logits
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(loaded, VaswaniForConditionalGeneration)
    assert loaded.config.encoder_attention == ["full", "sparse"]
    assert torch.equal(loaded(**data).logits, expected)
    torch.save(data, tmp_path / "data.pt")
    script = f"""
import torch, vaswani
from transformers import AutoModelForSeq2SeqLM
torch.set_num_threads({torch.get_num_threads()})
data = torch.load({str(tmp_path / "data.pt")!r}, weights_only=True)
logits = AutoModelForSeq2SeqLM.from_pretrained({str(tmp_path)!r})(**data).logits
torch.save(logits.detach(), {str(tmp_path / "logits.pt")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt", weights_only=True), expected)


def test_a_mask_for_each_query_is_refused() -> None:
    model, data = tiny_model(**SPARSE), long_batch(rows=1)
    data["attention_mask"] = torch.ones(1, 1, 61, 61, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"takes a padding mask \[batch, length\]; got \[1, 1, 61, 61\]"):
        model(**data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_attention": "sparce"}, 'encoder_attention=\'sparce\' must be "full", "sparse" or a list'),
        ({"decoder_attention": ["full"]}, "decoder_attention lists 1 layers and decoder_layers=2"),
        ({**SPARSE, "sparse_window_blocks": 2}, "in the encoder: sparse_window_blocks=2 must be odd"),
        ({**SPARSE, "sparse_block_size": 0}, "sparse_block_size=0 must be at least 1"),
        (
            {**SPARSE, "sparse_global_tokens": 5},
            "sparse_global_tokens=5 and global_blocks=1 exclude each other",
        ),
    ],
)
def test_impossible_configurations_raise_an_error(fields: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        tiny_config(**fields)


def test_left_padding_gives_a_warning_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("vaswani.model.input_checks.logger.warning_once", told.append)
    shape = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    model = VaswaniEncoderModel(VaswaniEncoderConfig(vocab_size=60, **shape, encoder_attention="sparse"))
    ids, mask = torch.randint(3, 60, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    left, right = mask.clone(), mask.clone()
    left[0, :3] = right[0, 5:] = 0
    model.train()(input_ids=ids, attention_mask=left)
    for given in (None, mask, right):
        model.eval()(input_ids=ids, attention_mask=given)
    assert told == []
    model(input_ids=ids, attention_mask=left)
    assert len(told) == 1
    assert told[0].startswith("Sparse attention counts blocks from the first column of a batch")
