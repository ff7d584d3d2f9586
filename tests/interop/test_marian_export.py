"""Encoder-decoders with the default layout are exported as MarianMT models with the same outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from library_models import PAD, TRANSLATOR_SHAPE, VOCAB, padded_batch, randomize
from transformers import AutoTokenizer, MarianMTModel

from toy_translation import save_toy_checkpoint, toy_model, toy_sources, toy_tokenizers
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.interop import convert, equal_weights, export, marian_fsmt
from vaswani.interop.equal_weights import sines_first
from vaswani.interop.folders import convert_folder
from vaswani.model.embeddings import SinusoidalPositions

TWO: dict[str, Any] = {"decoder_vocab_size": 71}
BIASES = ("attention_bias", "attention_output_bias", "ffn_bias", "norm_bias", "lm_head_bias")
MODELS: dict[str, dict[str, Any]] = {
    "default": {},
    "shared, untied": {"tie_word_embeddings": False},
    "one vocabulary, two embeddings": {"share_encoder_decoder_embeddings": False},
    "one vocabulary, two embeddings, untied": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    },
    "two vocabularies": TWO,
    "two vocabularies, untied": {**TWO, "tie_word_embeddings": False},
    "smaller target vocabulary": {"decoder_vocab_size": 41},
    "all biases": dict.fromkeys(BIASES, True),
    "no biases": dict.fromkeys(BIASES, False),
    **{f"no {name}": {name: False} for name in BIASES[:-1]},
    "unscaled": {"scale_embedding": False},
    **{name: {"activation_function": name} for name in ("gelu", "silu", "tanh")},
    "narrow heads": {"decoder_attention_heads": 12, "encoder_attention_heads": 1},
    "narrow keys": {"key_dim": 1},
}
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 4, "length_penalty": 3.0, "early_stopping": True, "max_length": 5},
    {"num_beams": 1, "forced_bos_token_id": 9, "forced_eos_token_id": 2, "max_length": 6},
    {"num_beams": 4, "bad_words_ids": [[0]]},
]


def random_model(dtype: torch.dtype = torch.float64, **fields: Any) -> Any:
    shape = {**TRANSLATOR_SHAPE, "vocab_size": VOCAB, "max_position_embeddings": 32}
    config = VaswaniConfig(**{**shape, **fields})
    return randomize(VaswaniForConditionalGeneration(config), scale=0.3).to(dtype)


def exported(ours: Any) -> Any:
    theirs = export(ours, "marian")
    assert type(theirs) is MarianMTModel
    return theirs


def with_unrounded_sinusoids(theirs: Any) -> Any:
    """Marian rounds its table to float32, in float64 too. Ours, interleaved, has the digits of float64."""
    config = VaswaniConfig(
        d_model=theirs.config.d_model, encoder_attention_heads=1, decoder_attention_heads=1
    )
    positions = torch.arange(theirs.config.max_position_embeddings)
    table = SinusoidalPositions(config).encode(positions, torch.float64)[:, sines_first(config.d_model)]
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_positions.weight.data = table.clone()
    return theirs


def inputs_for(config: VaswaniConfig) -> dict[str, Any]:
    size = config.decoder_vocab_size or config.vocab_size
    target = padded_batch("right", length=9)["input_ids"] % size
    return {**padded_batch("right"), "decoder_input_ids": target, "use_cache": False}


def differences(ours: Any, theirs: Any, inputs: dict[str, Any]) -> tuple[float, float]:
    """The largest between the encoder's outputs, with the features in one order, and between the logits."""
    with torch.no_grad():
        actual, expected = theirs(**inputs), ours(**inputs)
    shown = inputs["attention_mask"].bool()
    order = sines_first(ours.config.d_model)
    states = actual.encoder_last_hidden_state - expected.encoder_last_hidden_state[..., order]
    return states[shown].abs().max().item(), (actual.logits - expected.logits).abs().max().item()


def assert_closer(found: tuple[float, float], tolerance: float) -> None:
    assert max(found) <= tolerance, found


@pytest.mark.parametrize("fields", MODELS.values(), ids=list(MODELS))
def test_encoder_outputs_and_logits_are_equal(fields: dict[str, Any]) -> None:
    ours = random_model(**fields)
    theirs = exported(ours)
    inputs = inputs_for(ours.config)
    assert_closer(differences(ours, theirs, inputs), 1e-5)
    assert_closer(differences(ours, with_unrounded_sinusoids(theirs), inputs), 1e-10)


@pytest.mark.parametrize("separate", [False, True])
def test_trained_models_are_equal(separate: bool) -> None:
    ours = toy_model(separate).double()
    source, target = toy_tokenizers(separate)
    inputs = dict(source(toy_sources(8, seed=5), padding=True, return_tensors="pt"))
    texts = target(
        [" ".join("12345"[:n]) for n in (1, 5, 3, 2, 4, 5, 1, 2)], padding=True, return_tensors="pt"
    )
    inputs |= {"decoder_input_ids": texts["input_ids"], "use_cache": False}
    theirs = with_unrounded_sinusoids(exported(ours))
    assert_closer(differences(ours, theirs, inputs), 1e-10)
    ours, theirs = ours.float(), exported(ours.float())
    assert_closer(differences(ours, theirs, inputs), 1e-4)


def test_the_order_of_features_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = random_model()
    inputs = inputs_for(ours.config)
    monkeypatch.setattr(equal_weights, "sines_first", lambda d_model: torch.arange(d_model))
    assert differences(ours, exported(ours), inputs)[1] > 0.1


def test_every_tensor_is_in_place() -> None:
    """A change of any of ours changes theirs alike."""
    ours = random_model(**TWO, lm_head_bias=True, tie_word_embeddings=False)
    inputs = inputs_for(ours.config)
    for name, weights in ours.named_parameters():
        before = ours(**inputs).logits.detach()
        with torch.no_grad():
            weights.mul_(1.1 + 0.2 * torch.rand_like(weights)).add_(0.1 * torch.randn_like(weights))
        if not name.endswith("k_proj.bias"):  # added to all scores of a query, it changes no weight
            assert (ours(**inputs).logits - before).abs().max() > 1e-6, name
        assert_closer(differences(ours, with_unrounded_sinusoids(exported(ours)), inputs), 1e-10)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("separate", [False, True])
def test_generation_is_the_same(separate: bool, search: dict[str, Any], tmp_path: Path) -> None:
    """With the settings of the saved model, and none given."""
    ours = toy_model(separate).double()
    ours.generation_config.update(**{"max_length": 12, "num_beams": 1, **search})
    exported(ours).save_pretrained(tmp_path)
    theirs = MarianMTModel.from_pretrained(tmp_path, dtype=torch.float64)
    batch = toy_tokenizers(separate)[0](toy_sources(6, seed=3), padding=True, return_tensors="pt")
    expected = ours.generate(**batch)
    assert torch.equal(theirs.generate(**batch), expected)
    assert len({tuple(row) for row in expected.tolist()}) > 1
    forced = search.get("forced_eos_token_id")
    assert json.loads((tmp_path / "config.json").read_text())["forced_eos_token_id"] == forced


def test_the_tested_searches_give_different_results() -> None:
    """So that the test above notices settings that are not exported."""
    batch = toy_tokenizers()[0](toy_sources(6, seed=3), padding=True, return_tensors="pt")
    found = [toy_model().generate(**batch, **{"max_length": 12, **search}) for search in SEARCHES[:5]]
    assert len({str(ids.tolist()) for ids in found}) > 3


@pytest.mark.parametrize("separate", [False, True])
def test_a_folder_is_exported_with_its_tokenizers(separate: bool, tmp_path: Path, capsys) -> None:
    folder, output = save_toy_checkpoint(tmp_path / "toy", separate), tmp_path / "marian"
    assert run(["convert", str(folder), str(output), "--to", "marian"]) == 0
    assert "VaswaniForConditionalGeneration → MarianMTModel" in capsys.readouterr().out
    for part in ("", "target_tokenizer")[: 1 + separate]:
        names = json.loads((output / part / "tokenizer_config.json").read_text())
        assert names["tokenizer_class"] in ("TokenizersBackend", "PreTrainedTokenizerFast")
        texts = ["one two three", "1 2 3"]
        before, after = (AutoTokenizer.from_pretrained(each / part) for each in (folder, output))
        assert after(texts).data == before(texts).data
        assert after.padding_side == "right"
    assert not list(output.glob("*.py"))
    assert "auto_map" not in (output / "config.json").read_text()


@pytest.mark.parametrize("fields", MODELS.values(), ids=list(MODELS))
def test_export_and_conversion_back_restore_the_model(fields: dict[str, Any]) -> None:
    """The weights are bit-identical, with sines first; missing biases become zeros."""
    ours = random_model(torch.float32, **fields)
    theirs = exported(ours)
    back: Any = convert(theirs)
    usual = equal_weights.with_usual_keys(ours.config, ours.state_dict())
    config, state = equal_weights.with_zero_biases(*equal_weights.with_concatenated_sinusoids(*usual))
    state.setdefault("lm_head.bias", torch.zeros(config.decoder_vocab_size))
    assert state.keys() == back.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in back.state_dict().items())
    config.update({"lm_head_bias": True, "position_from_mask": False, "initializer_range": 0.02})
    config.share_encoder_decoder_embeddings &= config.tie_word_embeddings
    ignored = {"architectures", "dtype"}
    before, after = (
        {name: value for name, value in each.to_dict().items() if name not in ignored}
        for each in (config, back.config)
    )
    assert after == before
    inputs = inputs_for(config)
    torch.testing.assert_close(back(**inputs).logits, ours(**inputs).logits, atol=1e-5, rtol=1e-5)
    again = export(back, "marian").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in theirs.state_dict().items())


def test_export_does_not_change_the_model() -> None:
    ours = random_model(attention_bias=False)
    state = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    config = ours.config.to_dict()
    exported(ours).model.encoder.layers[0].fc1.weight.data.zero_()
    assert ours.config.to_dict() == config
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize("option", ["max_length", "max_source_length"])
def test_positions_cover_the_lengths_that_the_model_generates(option: str) -> None:
    """Ours have no limit; Marian's end at max_position_embeddings, whatever the texts."""
    ours = random_model(max_position_embeddings=16)
    batch = padded_batch("right", length=20)
    inputs = {**batch, "decoder_input_ids": batch["input_ids"], "use_cache": False}
    assert ours(**inputs).logits.isfinite().all()
    with pytest.raises(IndexError):
        exported(ours)(**inputs)
    setattr(ours.generation_config, option, 20)
    theirs = exported(ours)
    assert theirs.config.max_position_embeddings == 20
    assert_closer(differences(ours, with_unrounded_sinusoids(theirs), inputs), 1e-10)


def test_a_saved_model_is_given_more_positions_by_its_configuration(tmp_path: Path) -> None:
    ours = random_model(torch.float32, max_position_embeddings=16)
    exported(ours).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    batch = padded_batch("right", length=20)
    inputs = {**batch, "decoder_input_ids": batch["input_ids"], "use_cache": False}
    assert_closer(differences(ours, MarianMTModel.from_pretrained(tmp_path), inputs), 1e-5)


def test_texts_without_limit_do_not_fill_the_memory_with_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marian_fsmt, "LONGEST_TABLE", 40)
    ours = random_model()
    ours.generation_config.max_length = 10**9
    assert exported(ours).config.max_position_embeddings == 40
    assert exported(random_model(max_position_embeddings=50)).config.max_position_embeddings == 50


def test_a_model_with_few_positions_is_exported(tmp_path: Path) -> None:
    random_model(torch.float32, max_position_embeddings=4).save_pretrained(tmp_path / "ours")
    made = convert_folder(str(tmp_path / "ours"), tmp_path / "marian", to="marian")
    assert made.difference < 1e-4
    assert not made.has_tokenizer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    random_model(dtype).save_pretrained(tmp_path / "ours")
    convert_folder(str(tmp_path / "ours"), tmp_path / "marian", to="marian")
    assert MarianMTModel.from_pretrained(tmp_path / "marian", dtype="auto").dtype == dtype


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"norm_order": "pre"},
            "norm_order='pre' is not supported: MarianMT has post-norm layers only; `vaswani export --to "
            "ctranslate2` takes both",
        ),
        ({"final_norm": True}, "final_norm=True is not supported: marian models have final_norm=False"),
        ({"embedding_norm": True}, "embedding_norm=True is not supported"),
        (
            {"layer_norm_eps": 1e-6},
            "layer_norm_eps=1e-06 is not supported: marian models have layer_norm_eps=1e-05",
        ),
        ({"position_embedding": "learned"}, "position_embedding='learned' is not supported"),
        ({"position_embedding": "none"}, "position_embedding='none' is not supported"),
        ({"sinusoidal_layout": "tensor2tensor"}, "sinusoidal_layout='tensor2tensor' is not supported"),
        ({"sinusoidal_offset": 2}, "sinusoidal_offset=2 is not supported"),
        ({"encoder_attention": "sparse"}, "encoder_attention='sparse' is not supported"),
        ({"decoder_attention": ["full", "sparse"]}, "decoder_attention=['full', 'sparse'] is not supported"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_fields_raise_an_error(
    fields: dict[str, Any], message: str, tmp_path: Path, capsys
) -> None:
    random_model(torch.float32, **fields).save_pretrained(tmp_path / "ours")
    assert run(["convert", str(tmp_path / "ours"), str(tmp_path / "marian"), "--to", "marian"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "marian").exists()


def test_stacks_without_a_head_need_the_concatenated_layout() -> None:
    config = VaswaniConfig(**TRANSLATOR_SHAPE, vocab_size=VOCAB)
    with pytest.raises(UserError, match="sinusoidal_layout='interleaved' is not supported for VaswaniModel"):
        export(VaswaniModel(config), "marian")
    config.sinusoidal_layout = "concatenated"
    assert type(export(VaswaniModel(config), "marian")).__name__ == "MarianModel"


def test_left_padding_shifts_positions_in_marian() -> None:
    """The documents say so: positions of ours begin with the first token."""
    ours = random_model()
    theirs = exported(ours)
    batch = padded_batch("left")
    assert (batch["input_ids"] == PAD).any()
    inputs = {**batch, "decoder_input_ids": batch["input_ids"][:, -3:], "use_cache": False}
    assert differences(ours, theirs, inputs)[1] > 1e-3
    counting = random_model(position_from_mask=False)
    assert_closer(differences(counting, theirs, inputs), 1e-5)
