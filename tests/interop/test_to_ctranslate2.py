"""Models exported to CTranslate2 give the same results, for each supported field."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from library_models import randomize
from transformers import BertConfig, BertModel

from library_tokenizers import library_tokenizers
from toy_translation import save_toy_checkpoint, toy_model, toy_tokenizers
from vaswani import (
    Translator,
    VaswaniDecoderForSequenceClassification,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
    VaswaniForQuestionAnswering,
    VaswaniForSequenceClassification,
    VaswaniForTokenClassification,
)
from vaswani.cli import run
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError
from vaswani.files.run_settings import read_settings
from vaswani.interop.folders import export_folder
from vaswani.interop.to_ctranslate2 import ACTIVATIONS, QUANTIZATIONS, export_to_ctranslate2

__all__ = ["library_tokenizers"]

ctranslate2 = pytest.importorskip("ctranslate2")

SHAPE: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
FIELDS: list[dict[str, Any]] = [
    {},
    {"norm_order": "pre"},
    {"norm_order": "pre", "final_norm": False},
    {"norm_order": "post", "final_norm": True},
    {"embedding_norm": True},
    {"norm_bias": False},
    {"position_embedding": "learned", "max_position_embeddings": 40},
    {"position_embedding": "none"},
    {"sinusoidal_layout": "concatenated"},
    {"sinusoidal_layout": "tensor2tensor", "sinusoidal_offset": 2},
    {"attention_bias": False},
    {"attention_bias": False, "attention_output_bias": True},
    {"ffn_bias": False},
    {"lm_head_bias": True},
    {"scale_embedding": False},
    {"tie_word_embeddings": False},
    {"layer_norm_eps": 0.5},
    {"key_dim": 3},
    {"key_dim": 8, "attention_bias": False},
    *({"activation_function": name} for name in ACTIVATIONS),
]
TEXTS = ["one two", "three", "seven eight nine ten"]


def shape_of(config_class: type) -> dict[str, Any]:
    return {name: value for name, value in SHAPE.items() if hasattr(config_class, name)}


def make(model_class: Any, vocab_size: int, **fields: Any) -> Any:
    config_class = model_class.config_class
    return randomize(
        model_class(config_class(**{**shape_of(config_class), "vocab_size": vocab_size, **fields}))
    ).eval()


def exported(model: Any, tokenizers: Any, folder: Path, **options: Any) -> str:
    folder.mkdir()
    export_to_ctranslate2(model, tokenizers, folder, **options)
    return str(folder)


def tokens_of(tokenizer: Any) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(TEXTS).input_ids]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_scores_of_an_encoder_decoder_are_equal(fields, separate, tmp_path):
    source, target = toy_tokenizers(separate)
    vocabularies = {"decoder_vocab_size": len(target)} if separate else {}
    model = make(VaswaniForConditionalGeneration, len(source), **vocabularies, **fields)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    translator = ctranslate2.Translator(exported(model, (source, target), tmp_path / "out"))
    sources, targets = tokens_of(source), tokens_of(target)[::-1]
    found = translator.score_batch(sources, [tokens[:-1] for tokens in targets])  # it adds the end
    for row, result in enumerate(found):
        ids = torch.tensor([source.convert_tokens_to_ids(sources[row])])
        learned = target.convert_tokens_to_ids(targets[row])
        sequences = torch.tensor([[model.config.decoder_start_token_id, *learned]])
        with torch.no_grad():
            logits = model(input_ids=ids, decoder_input_ids=sequences[:, :-1]).logits[0]
        expected = logits.log_softmax(-1).gather(-1, sequences[0, 1:, None])[:, 0]
        np.testing.assert_allclose(result.log_probs, expected, atol=2e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("lm_head_bias", [False, True])
@pytest.mark.parametrize("quantization", [None, "int8", "float16"])
def test_unwritten_padding_does_not_affect_scores(lm_head_bias, quantization, tmp_path):
    tokenizer, _ = toy_tokenizers(False)
    model = make(VaswaniForConditionalGeneration, len(tokenizer), lm_head_bias=lm_head_bias)
    sources, targets = tokens_of(tokenizer), [tokens[:-1] for tokens in tokens_of(tokenizer)[::-1]]
    found = []
    for bad_words in (None, [[0]]):
        model.generation_config.bad_words_ids = bad_words
        folder = exported(model, (tokenizer, tokenizer), tmp_path / str(bad_words), quantization=quantization)
        scores = ctranslate2.Translator(folder).score_batch(sources, targets)
        found.append(np.concatenate([result.log_probs for result in scores]))
    padding = tokenizer.pad_token
    only = ctranslate2.Translator(folder).score_batch([["one"]], [[padding]])[0].log_probs[0]
    assert only < -1000
    assert (found[1] > found[0]).all()  # as padding had a part of what is one


@pytest.mark.parametrize("kind", ["marian of two vocabularies", "fsmt"])
def test_each_side_has_its_own_vocabulary(kind, library_tokenizers, tmp_path):
    tokenizers = load_tokenizers(library_tokenizers[kind])
    sides = [
        TextCodec(tokenizer, side).vocabulary()
        for tokenizer, side in zip(tokenizers, ("source", "target"), strict=True)
    ]
    sizes = {"vocab_size": len(sides[0]), "decoder_vocab_size": len(sides[1])}
    model = make(VaswaniForConditionalGeneration, **sizes)
    folder = Path(exported(model, tokenizers, tmp_path / "out"))
    for side, expected in zip(("source", "target"), sides, strict=True):
        found = json.loads((folder / f"{side}_vocabulary.json").read_text())
        assert {token: number for number, token in enumerate(found)} == expected
    assert sides[0] != sides[1]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_scores_of_a_causal_model_are_equal(fields, tmp_path):
    (tokenizer, _), ids = toy_tokenizers(), [7, 20, 9, 30, 11, 2]
    model = make(VaswaniForCausalLM, len(tokenizer), **fields)
    generator = ctranslate2.Generator(exported(model, (tokenizer,), tmp_path / "out"))
    found = generator.score_batch([tokenizer.convert_ids_to_tokens(ids)])[0].log_probs
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    expected = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(
    "fields", [*FIELDS, {"scale_embedding": True}, {"token_type_vocab_size": 0}, {"pooler": False}], ids=str
)
def test_states_of_an_encoder_are_equal(fields, tmp_path):
    tokenizer, _ = toy_tokenizers()
    model = make(VaswaniEncoderModel, len(tokenizer), **fields)
    encoder = ctranslate2.Encoder(exported(model, (tokenizer,), tmp_path / "out"))
    rows = tokenizer(TEXTS).input_ids
    types = [[number % 2 for number in range(len(row))] for row in rows] if model.embed_token_types else None
    found = np.array(encoder.forward_batch(rows, token_type_ids=types).last_hidden_state)
    for number, row in enumerate(rows):
        kinds = {} if types is None else {"token_type_ids": torch.tensor([types[number]])}
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([row]), **kinds)[0][0]
        np.testing.assert_allclose(found[number, : len(row)], expected, atol=2e-5)


def test_quantization_reduces_size_and_changes_scores(tmp_path):
    tokenizers = toy_tokenizers()
    model, sizes, scores = toy_model(), {}, {}
    sources, targets = tokens_of(tokenizers[0]), tokens_of(tokenizers[1])
    for quantization in (None, *QUANTIZATIONS):
        folder = exported(
            model, tokenizers, tmp_path / str(quantization), quantization=quantization, max_positions=9
        )
        sizes[quantization] = (Path(folder) / "model.bin").stat().st_size
        translator = ctranslate2.Translator(folder, compute_type="float32")
        scores[quantization] = [row.log_probs for row in translator.score_batch(sources, targets)]
    assert sizes["float32"] == sizes[None] > sizes["int16"] >= sizes["float16"] > sizes["int8"]
    assert scores["float32"] == scores[None]
    for quantization in QUANTIZATIONS[1:]:
        assert scores[quantization] != scores[None]
        for found, expected in zip(scores[quantization], scores[None], strict=True):
            np.testing.assert_allclose(found, expected, atol=0.3)


def test_a_text_may_have_max_positions(tmp_path):
    tokenizers = toy_tokenizers()
    folder = exported(toy_model(), tokenizers, tmp_path / "out", max_positions=5)
    translator = ctranslate2.Translator(folder)
    token = tokenizers[0].convert_ids_to_tokens(9)
    translator.translate_batch([[token] * 5], max_decoding_length=4)
    with pytest.raises(RuntimeError, match="position"):
        translator.translate_batch([[token] * 6], max_decoding_length=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"encoder_attention": "sparse"},
            "encoder_attention='sparse' is not supported: CTranslate2 models have full .* the model itself",
        ),
        ({"decoder_attention": ["sparse"]}, r"decoder_attention=\['sparse'\] is not supported"),
        (
            {"position_embedding": "learned", "max_position_embeddings": 40},
            "max_positions=9 has no effect on learned positions, of which the model has 40; leave it out",
        ),
        ({"key_dim": 9}, "key_dim=9 is not supported: .* which have 8 features in a head of the encoder"),
        (
            {"activation_function": "mish"},
            "activation_function='mish' is not supported: CTranslate2 has relu",
        ),
    ],
)
def test_unsupported_fields_raise_an_error(fields, message, tmp_path):
    tokenizers = toy_tokenizers()
    model = make(VaswaniForConditionalGeneration, len(tokenizers[0]), **fields)
    with pytest.raises(UserError, match=message):
        export_to_ctranslate2(model, tokenizers, tmp_path, max_positions=9)
    assert not [*tmp_path.iterdir()]


def test_a_folder_is_exported_with_tokenizers_and_settings(tmp_path, capsys):
    save_toy_checkpoint(tmp_path / "toy", separate=True)
    arguments = ["export", str(tmp_path / "toy"), str(tmp_path / "out"), "--quantization", "int8"]
    assert run(arguments) == 0
    assert "VaswaniForConditionalGeneration for CTranslate2, int8" in capsys.readouterr().out
    source, target = load_tokenizers(tmp_path / "out")
    assert len(source) != len(target)
    assert (tmp_path / "out" / "generation_config.json").is_file()
    translator = ctranslate2.Translator(str(tmp_path / "out"))
    found = translator.translate_batch(tokens_of(source), beam_size=4)
    texts = [target.decode(target.convert_tokens_to_ids(row.hypotheses[0])) for row in found]
    expected = Translator.from_pretrained(tmp_path / "toy")(TEXTS)
    assert sum(a == b for a, b in zip(texts, expected, strict=True)) >= 2, (texts, expected)
    assert run(arguments) == 2
    assert "is not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["export"], ["export", "--to", "onnx"], ["export", "--to", "marian"], ["convert", "--to", "marian"]],
)
def test_a_checkpoint_inside_a_run_keeps_the_settings_of_the_run(command, tmp_path):
    """`vaswani evaluate` reads the columns of the training there."""
    checkpoint = save_toy_checkpoint(tmp_path / "run" / "checkpoint-7")
    (tmp_path / "run" / "training_config.yaml").write_text("source_field: en\ntarget_field: de\n")
    assert run([command[0], str(checkpoint), str(tmp_path / "out"), *command[1:]]) == 0
    assert read_settings(tmp_path / "out") == {"source_field": "en", "target_field": "de"}


def test_a_pretrained_encoder_is_exported_without_its_head(tmp_path, capsys):
    tokenizer, _ = toy_tokenizers()
    make(VaswaniForMaskedLM, len(tokenizer)).save_pretrained(tmp_path / "masked")
    tokenizer.save_pretrained(tmp_path / "masked")
    assert run(["export", str(tmp_path / "masked"), str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "VaswaniEncoderModel for CTranslate2, float32" in told
    assert told.endswith(", without the head of VaswaniForMaskedLM\n")
    ctranslate2.Encoder(str(tmp_path / "out")).forward_batch([[5, 6]])


@pytest.mark.parametrize(
    "model_class",
    [VaswaniForSequenceClassification, VaswaniForTokenClassification, VaswaniForQuestionAnswering],
)
def test_a_model_that_would_lose_its_task_is_refused(model_class, tmp_path, capsys):
    tokenizer, _ = toy_tokenizers()
    make(model_class, len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert run(["export", str(tmp_path / "model"), str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.strip()
    assert f"CTranslate2 has no counterpart of {model_class.__name__}; it runs Vaswani" in told
    assert told.endswith("; export it to ONNX (--to onnx)")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "tensorrt"], "unknown format 'tensorrt'; expected one of ctranslate2"),
        (["--quantization", "int4"], "unknown quantization 'int4'; choose one of float32"),
        (["--max_positions", "0"], "max_positions=0"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(options, message, tmp_path, capsys):
    save_toy_checkpoint(tmp_path / "toy")
    assert run(["export", str(tmp_path / "toy"), str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_classes_and_models_without_counterpart_are_refused(tmp_path):
    tokenizer, _ = toy_tokenizers()
    config_class = VaswaniDecoderForSequenceClassification.config_class
    model = VaswaniDecoderForSequenceClassification(
        config_class(**shape_of(config_class), vocab_size=len(tokenizer))
    )
    with pytest.raises(UserError, match="no counterpart of VaswaniDecoderForSequenceClassification; it runs"):
        export_to_ctranslate2(model, (tokenizer,), tmp_path)
    BertModel(
        BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="is a 'bert' model, and vaswani models are exported"):
        export_folder(str(tmp_path / "bert"), tmp_path / "out")


def test_a_missing_engine_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r'pip install "vaswani\[ctranslate2\]"'):
        export_folder(str(tmp_path), tmp_path / "out")
