"""The initial model of a fine-tuning: loading, adding a head, and errors."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
)

from toy_labels import POSITIONS, save_toy_encoder, toy_tokenizer
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.errors import UserError
from vaswani.training.runs.models import load_with_head, new_with_head, open_pretrained

CLASSIFIER = AutoModelForSequenceClassification
FIELDS = {"num_labels": 3, "problem_type": "single_label_classification"}


@pytest.fixture(params=[False, True], ids=["ours", "library"])
def encoder(request, tmp_path):
    return save_toy_encoder(tmp_path / "encoder", request.param)


def test_the_encoder_is_loaded_and_the_head_is_new(encoder):
    opened = open_pretrained(str(encoder), CLASSIFIER)
    model, new = load_with_head(opened, CLASSIFIER, FIELDS)
    assert {"classifier.weight", "classifier.bias"} <= set(new)
    assert all(name.startswith("classifier") or ".pooler." in name for name in new)
    assert model.config.num_labels == 3
    base = AutoModel.from_pretrained(encoder)
    weights, expected = model.base_model.state_dict(), base.state_dict()
    for name in weights.keys() & expected.keys() - {name.split(".", 1)[1] for name in new}:
        if "pooler" not in name:
            assert torch.equal(weights[name], expected[name]), name


def test_the_seed_determines_new_weights(encoder):
    opened = open_pretrained(str(encoder), CLASSIFIER)

    def drawn(seed: int, load: bool) -> torch.Tensor:
        torch.manual_seed(seed)
        made = load_with_head(opened, CLASSIFIER, FIELDS)[0] if load else None
        return (made or new_with_head(opened, CLASSIFIER, FIELDS)).classifier.weight

    for load in (True, False):
        assert torch.equal(drawn(0, load), drawn(0, load))
        assert not torch.equal(drawn(0, load), drawn(1, load))
    fresh = new_with_head(opened, CLASSIFIER, FIELDS)
    loaded = load_with_head(opened, CLASSIFIER, FIELDS)[0]
    embeddings = [model.get_input_embeddings().weight for model in (fresh, loaded)]
    assert embeddings[0].shape == embeddings[1].shape
    assert not torch.equal(*embeddings)


def test_a_head_of_the_same_size_is_kept_and_another_is_initialized(encoder, tmp_path):
    opened = open_pretrained(str(encoder), CLASSIFIER)
    model, _ = load_with_head(opened, CLASSIFIER, FIELDS)
    model.save_pretrained(tmp_path / "tuned")
    toy_tokenizer().save_pretrained(tmp_path / "tuned")
    again = open_pretrained(str(tmp_path / "tuned"), CLASSIFIER)
    same, new = load_with_head(again, CLASSIFIER, FIELDS)
    assert new == []
    assert torch.equal(same.classifier.weight, model.classifier.weight)
    other, new = load_with_head(again, CLASSIFIER, {**FIELDS, "num_labels": 2})
    assert new == ["classifier.bias", "classifier.weight"]
    assert other.classifier.weight.shape[0] == 2


def labelled(*names: str) -> dict:
    return {
        **FIELDS,
        "id2label": dict(enumerate(names)),
        "label2id": {name: n for n, name in enumerate(names)},
    }


def test_the_output_layer_follows_the_names_of_the_labels(encoder, tmp_path, capsys):
    model, _ = load_with_head(open_pretrained(str(encoder), CLASSIFIER), CLASSIFIER, labelled("a", "b", "c"))
    with torch.no_grad():
        model.classifier.bias.copy_(torch.arange(3.0))
    model.save_pretrained(tmp_path / "tuned")
    toy_tokenizer().save_pretrained(tmp_path / "tuned")
    tuned = open_pretrained(str(tmp_path / "tuned"), CLASSIFIER)

    capsys.readouterr()
    sorted_anew, new = load_with_head(tuned, CLASSIFIER, labelled("c", "a", "b"))
    assert (new, capsys.readouterr().out) == ([], "")
    assert torch.equal(sorted_anew.classifier.weight, model.classifier.weight[[2, 0, 1]])
    assert sorted_anew.classifier.bias.tolist() == [2, 0, 1]

    other, new = load_with_head(tuned, CLASSIFIER, labelled("b", "c", "d"))
    assert new == ["classifier.weight", "classifier.bias"]
    assert "new weights: classifier.weight, classifier.bias" in capsys.readouterr().out
    assert other.classifier.bias.tolist() == [0, 0, 0]
    assert not set(other.classifier.weight.flatten().tolist()) & set(
        model.classifier.weight.flatten().tolist()
    )
    for (name, weight), kept in zip(
        model.base_model.named_parameters(), other.base_model.parameters(), strict=True
    ):
        assert torch.equal(weight, kept) or "classifier" in name, name


def test_weights_are_float32_whatever_was_saved(encoder):
    AutoModel.from_pretrained(encoder).to(torch.bfloat16).save_pretrained(encoder)
    opened = open_pretrained(str(encoder), CLASSIFIER)
    made = [load_with_head(opened, CLASSIFIER, FIELDS)[0], new_with_head(opened, CLASSIFIER, FIELDS)]
    assert {weight.dtype for model in made for weight in model.parameters()} == {torch.float32}


def test_the_longest_text_is_limited_by_positions_or_tokenizer(tmp_path):
    learned = save_toy_encoder(tmp_path / "learned")
    assert open_pretrained(str(learned), CLASSIFIER).longest == POSITIONS
    any_length = save_toy_encoder(tmp_path / "any", position_embedding="sinusoidal")
    assert open_pretrained(str(any_length), CLASSIFIER).longest is None
    tokenizer = AutoTokenizer.from_pretrained(learned)
    tokenizer.model_max_length = POSITIONS - 2  # as RoBERTa's, whose first positions stand for padding
    tokenizer.save_pretrained(learned)
    assert open_pretrained(str(learned), CLASSIFIER).longest == POSITIONS - 2


@pytest.mark.parametrize("length", [POSITIONS, int(1e30)])
def test_the_positions_of_roberta_begin_behind_its_padding(length, tmp_path):
    """This holds whether or not the tokenizer names the longest text."""
    tokenizer = toy_tokenizer()
    tokenizer.model_max_length = length
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=POSITIONS, pad_token_id=1, **sizes
    )
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    assert open_pretrained(str(tmp_path), CLASSIFIER).longest == POSITIONS - 2


@pytest.mark.parametrize("make", [load_with_head, new_with_head])
def test_the_attention_implementation_can_be_chosen(encoder, make):
    opened = open_pretrained(str(encoder), CLASSIFIER)
    made = make(opened, CLASSIFIER, FIELDS, attn_implementation="eager")
    model = made if make is new_with_head else made[0]
    assert model.config._attn_implementation == "eager"
    with pytest.raises(UserError, match="fast"):
        make(opened, CLASSIFIER, FIELDS, attn_implementation="fast")


def test_a_translator_is_not_accepted_as_an_encoder(tmp_path):
    VaswaniForConditionalGeneration(
        VaswaniConfig(
            vocab_size=20,
            d_model=8,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=1,
            decoder_attention_heads=1,
            encoder_ffn_dim=8,
            decoder_ffn_dim=8,
        )
    ).save_pretrained(tmp_path)
    with pytest.raises(
        UserError,
        match=r"of type 'vaswani', which AutoModelForSequenceClassification does not load; expected an enc",
    ):
        open_pretrained(str(tmp_path), CLASSIFIER)


def test_unusable_model_folders_raise_an_error(tmp_path):
    def broken(name: str):
        return shutil.copytree(whole, tmp_path / name)

    whole = save_toy_encoder(tmp_path / "whole")
    with pytest.raises(UserError, match=r"model folder .*/nowhere does not exist"):
        open_pretrained(str(tmp_path / "nowhere"), CLASSIFIER)
    with pytest.raises(UserError, match=r"holds no model \(it has no config.json\)"):
        open_pretrained(str(tmp_path), CLASSIFIER)

    (broken("no tokenizer") / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        open_pretrained(str(tmp_path / "no tokenizer"), CLASSIFIER)

    settings = broken("no padding") / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    values.pop("pad_token")
    settings.write_text(json.dumps(values))
    with pytest.raises(UserError, match="has no padding token"):
        open_pretrained(str(tmp_path / "no padding"), CLASSIFIER)

    (broken("no weights") / "model.safetensors").unlink()
    opened = open_pretrained(str(tmp_path / "no weights"), CLASSIFIER)
    with pytest.raises(UserError, match="has no weights"):
        load_with_head(opened, CLASSIFIER, FIELDS)

    weights = broken("half") / "model.safetensors"
    tensors = load_file(weights)
    save_file(
        {name: tensor for name, tensor in tensors.items() if "layers" not in name},
        weights,
        metadata={"format": "pt"},
    )
    opened = open_pretrained(str(tmp_path / "half"), CLASSIFIER)
    with pytest.raises(UserError, match=r"lack \d+ of the model's, such as model.encoder.layers.0"):
        load_with_head(opened, CLASSIFIER, FIELDS)

    config = broken("few tokens") / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "vocab_size": 100}))
    opened = open_pretrained(str(tmp_path / "few tokens"), CLASSIFIER)
    with pytest.raises(UserError, match=r"the tokenizer in .* has .* tokens but the model embeds 100"):
        new_with_head(opened, CLASSIFIER, FIELDS)
