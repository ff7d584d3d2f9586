"""Unexpected or non-finite weights raise an error that names them."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForPreTraining,
)
from transformers.utils import logging

from toy_labels import save_toy_encoder
from toy_translation import save_toy_checkpoint, toy_tokenizer
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.push import push_folder
from vaswani.hub.run_metadata import read_run_metadata
from vaswani.hub.weights import WEIGHTS, WEIGHTS_INDEX, check_finite, check_finite_files, silenced_load_report
from vaswani.training.runs.models import load_with_head, open_pretrained

Tensors = dict[str, torch.Tensor]
NAME = "model.decoder.layers.0.fc1.bias"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_checkpoint(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def change(folder: Path, how: Callable[[Tensors], Any]) -> None:
    weights = load_file(folder / WEIGHTS)
    how(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def message_of(action: Callable[..., object], *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        action(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_one_weight_that_is_not_finite_raises_an_error(checkpoint: Path, number: float) -> None:
    change(checkpoint, lambda weights: weights[NAME][3].fill_(number))
    expected = f"the weights in {checkpoint} are not finite numbers: {NAME} holds NaN or infinity in float32"
    assert message_of(load_checkpoint, checkpoint).startswith(expected)
    assert f"{checkpoint / WEIGHTS} are not finite numbers: {NAME} " in message_of(
        check_finite_files, checkpoint
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_position_of_every_dtype_is_checked(dtype: torch.dtype) -> None:
    check_finite([("weight", torch.full((40, 50), torch.finfo(dtype).max, dtype=dtype))], "memory")
    for place in (0, 999, 1999):
        weight = torch.zeros(2000, dtype=dtype)
        weight[place] = math.nan
        assert "weight holds NaN" in message_of(check_finite, [("weight", weight)], "memory")


def test_a_dtype_too_small_for_the_weights_raises_an_error(checkpoint: Path) -> None:
    change(checkpoint, lambda weights: weights[NAME].fill_(1e6))
    load_checkpoint(checkpoint)
    message = message_of(load_checkpoint, checkpoint, dtype="float16")
    assert f"{NAME} holds NaN or infinity in float16" in message
    assert "a dtype with a larger range" in message


def test_non_finite_weights_are_not_pushed(checkpoint: Path) -> None:
    change(checkpoint, lambda weights: weights[NAME].fill_(math.nan))
    facts = read_run_metadata(checkpoint)
    message = message_of(push_folder, checkpoint, "ada/toy", facts)
    assert message.startswith(f"the weights in {checkpoint / WEIGHTS} are not finite numbers: {NAME}")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64])
def test_integers_are_not_cast_to_weights(checkpoint: Path, dtype: torch.dtype) -> None:
    change(checkpoint, lambda weights: weights.update({NAME: weights[NAME].to(dtype)}))
    message = message_of(load_checkpoint, checkpoint)
    names = {torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.int32: "I32", torch.int64: "I64"}
    assert f"the weights in {checkpoint} hold {NAME} as {names[dtype]}, and the model needs" in message


def test_pickled_integers_are_not_cast_either(checkpoint: Path) -> None:
    weights = load_file(checkpoint / WEIGHTS)
    (checkpoint / WEIGHTS).unlink()
    torch.save({**weights, NAME: weights[NAME].char()}, checkpoint / "pytorch_model.bin")
    assert f"hold {NAME} as torch.int8" in message_of(load_checkpoint, checkpoint)


def test_unexpected_weights_raise_an_error(checkpoint: Path) -> None:
    extra = {"model.decoder.layers.7.fc1.bias": torch.zeros(3), "model.more": torch.zeros(2)}
    change(checkpoint, lambda weights: weights.update(extra))
    message = message_of(load_checkpoint, checkpoint)
    assert (
        f"the weights in {checkpoint} hold 2 that the model has no parameter for, such as model.decoder.l"
        in message
    )
    load_checkpoint(checkpoint, allow_mismatch=True)


@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForMaskedLM"])
def test_a_masked_model_does_not_need_the_next_sentence_head(tmp_path: Path, architecture: str) -> None:
    """Published BERTs hold it, whichever class they name; other weights too many are still an error."""
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    tokenizer = toy_tokenizer()
    model = BertForPreTraining(BertConfig(**shape, vocab_size=len(tokenizer)))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    found = load_checkpoint(tmp_path, auto_class=AutoModelForMaskedLM)[0]
    expected = model.state_dict()["cls.predictions.transform.dense.weight"]
    assert torch.equal(found.state_dict()["cls.predictions.transform.dense.weight"], expected)
    change(tmp_path, lambda weights: weights.update({"bert.more": torch.zeros(2)}))
    message = message_of(load_checkpoint, tmp_path, auto_class=AutoModelForMaskedLM)
    assert "hold 1 that the model has no parameter for, such as bert.more" in message


def test_missing_weights_are_never_initialized_randomly(checkpoint: Path) -> None:
    change(checkpoint, lambda weights: weights.pop(NAME))
    for allow_mismatch in (False, True):
        message = message_of(load_checkpoint, checkpoint, allow_mismatch=allow_mismatch)
        assert f"lack 1 of the model's, such as {NAME}" in message


@pytest.mark.parametrize("places", [None, [], {}, {"a": 1}, {"a": "../a.safetensors"}, {"a": "b/c"}])
def test_a_weight_index_with_invalid_files_raises_an_error(checkpoint: Path, places: Any) -> None:
    (checkpoint / WEIGHTS).unlink()
    (checkpoint / WEIGHTS_INDEX).write_text(json.dumps({"weight_map": places}))
    assert message_of(load_checkpoint, checkpoint).startswith(
        f"{checkpoint / WEIGHTS_INDEX} is damaged: its weight_map must name a file"
    )


# Models that get a new head.


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return save_toy_encoder(tmp_path / "encoder")


def load_classifier(folder: Path) -> list[str]:
    pretrained = open_pretrained(str(folder), AutoModelForSequenceClassification)
    return load_with_head(pretrained, AutoModelForSequenceClassification, {"num_labels": 3})[1]


def test_a_new_head_is_initialized_and_the_old_one_dropped(encoder: Path) -> None:
    assert "classifier.weight" in "".join(load_classifier(encoder))


def test_unexpected_layers_of_the_base_model_raise_an_error(encoder: Path) -> None:
    change(encoder, lambda weights: weights.update({"model.encoder.layers.9.fc1.bias": torch.zeros(3)}))
    assert "hold 1 that the model has no parameter for, such as model.encoder.layers.9" in message_of(
        load_classifier, encoder
    )


def test_training_does_not_begin_with_nan(encoder: Path) -> None:
    change(encoder, lambda weights: weights["model.encoder.layers.0.fc1.bias"].fill_(math.nan))
    assert "are not finite numbers" in message_of(load_classifier, encoder)


def test_unused_heads_are_ignored_when_embedding(tmp_path: Path) -> None:
    """As in bert-base-uncased, whose configuration names one of the two heads that its weights hold."""
    tokenizer = toy_tokenizer()
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **shape))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    load_checkpoint(tmp_path, auto_class=None)
    change(
        tmp_path, lambda weights: weights.update({"bert.encoder.layer.9.output.dense.bias": torch.zeros(3)})
    )
    assert "bert.encoder.layer.9" in message_of(load_checkpoint, tmp_path, auto_class=None)


def test_loading_in_several_threads_restores_the_verbosity() -> None:
    before = logging.get_verbosity()
    first, second = silenced_load_report(), silenced_load_report()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # threads leave in the order in which they end
    assert logging.get_verbosity() == logging.ERROR
    second.__exit__(None, None, None)
    assert logging.get_verbosity() == before
