"""Every unusable model folder gives a one-line error that names the file and a remedy."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, GPT2Config

from toy_translation import save_toy_checkpoint, toy_model, toy_tokenizer
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save_toy_checkpoint(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def message_of(name: str | Path, **options: str) -> str:
    with pytest.raises(UserError) as error:
        load_checkpoint(name, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_loading_restores_model_and_tokenizers(checkpoint: Path) -> None:
    model, source, target = load_checkpoint(checkpoint)
    assert not model.training
    assert source is target
    assert len(source) == len(toy_tokenizer())
    for name, weight in toy_model().state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=0, check_device=False)


def test_shards_and_pickled_weights_load_too(checkpoint: Path) -> None:
    expected = toy_model().state_dict()
    (checkpoint / WEIGHTS).unlink()
    toy_model().save_pretrained(checkpoint, max_shard_size="20KB")
    assert len(list(checkpoint.glob("*.safetensors"))) > 1
    torch.testing.assert_close(dict(load_checkpoint(checkpoint)[0].cpu().state_dict()), dict(expected))
    for file in checkpoint.glob("*.safetensors*"):
        file.unlink()
    torch.save(expected, checkpoint / "pytorch_model.bin")
    torch.testing.assert_close(dict(load_checkpoint(checkpoint)[0].cpu().state_dict()), dict(expected))


def test_device_and_dtype_move_and_cast_the_model(checkpoint: Path) -> None:
    model, *_ = load_checkpoint(checkpoint, device="cpu", dtype="float16")
    assert (model.device.type, model.dtype) == ("cpu", torch.float16)
    assert load_checkpoint(checkpoint, dtype=torch.bfloat16)[0].dtype == torch.bfloat16


# A name that is no model.


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c", "missing/"])
def test_a_missing_folder_raises_an_error(name: str) -> None:
    assert message_of(name) == f"model folder {name} does not exist; give the folder that a training wrote"


@pytest.mark.parametrize("name", ["no-such-model", "somebody/no-such-model", "not a name"])
def test_an_unknown_hub_name_raises_an_error(name: str) -> None:
    assert message_of(name).startswith(
        f"model '{name}' is not a local folder and cannot be loaded from the Hub"
    )


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("runs/dates", "runs holds 'date', 'dates_small'"),  # the similar ones of four
        ("./runs/dates", "runs holds 'date', 'dates_small'"),
        ("runs/x", "runs holds 'date', 'dates_small', 'multi30k'"),  # the first of four
        ("run", "the current folder holds 'runs'"),
        ("x", None),
        ("empty/x", None),
        ("nowhere/x", None),
    ],
)
def test_a_missing_folder_names_similar_ones(
    tmp_path: Path, monkeypatch, name: str, named: str | None
) -> None:
    for folder in ("date", "dates_small", "multi30k", "weights", ".cache"):
        (tmp_path / "runs" / folder).mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs" / "dates.log").touch()
    monkeypatch.chdir(tmp_path)
    message = message_of(name)
    assert f" ({named})" in message if named else "holds" not in message


def test_a_folder_without_a_config_raises_an_error(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    assert message_of(checkpoint).startswith(
        f"{checkpoint} holds no model (it has no config.json); give the folder"
    )


def test_a_run_with_only_checkpoints_names_the_last_one(checkpoint: Path) -> None:
    last = checkpoint.parent / "checkpoint-20"
    shutil.copytree(checkpoint, last)
    assert message_of(checkpoint.parent).endswith(f"it has no config.json); give {last}")


@pytest.mark.parametrize("config", [BertConfig(), GPT2Config()])
def test_a_model_that_does_not_translate_raises_an_error(checkpoint: Path, config) -> None:
    config.save_pretrained(checkpoint)
    assert f"holds a model of type '{config.model_type}', which does not translate" in message_of(checkpoint)


def test_an_unknown_model_type_raises_an_error(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "vaswanny"}')
    message = message_of(checkpoint)
    assert str(checkpoint / "config.json") in message
    assert "vaswanny" in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is damaged or half-written ("),
        ('{"model_type": "vas', "is damaged or half-written ("),
        ("[]", "holds a JSON value of type list; expected an object"),
        ('{"model_type": "vaswani", "d_model": 30}', "cannot be used: "),
        (
            '{"model_type": "marian", "activation_function": "snake"}',
            "cannot be used: activation_function='snake' is",
        ),
    ],
)
def test_an_invalid_configuration_raises_an_error(checkpoint: Path, text: str, problem: str) -> None:
    (checkpoint / "config.json").write_text(text)
    assert message_of(checkpoint).startswith(f"{checkpoint / 'config.json'} {problem}")


# A checkpoint that is not whole.


def cut(size: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = file.read_bytes()
        file.write_bytes(content[: size(len(content))])

    return damage


@pytest.mark.parametrize(
    "damage",
    [cut(lambda size: 0), cut(lambda size: 5), cut(lambda size: 100), cut(lambda size: size - 1)],
    ids=["empty", "in its first bytes", "in its header", "in its weights"],
)
def test_truncated_weights_raise_an_error(checkpoint: Path, damage: Callable[[Path], None]) -> None:
    damage(checkpoint / WEIGHTS)
    assert message_of(checkpoint).startswith(f"{checkpoint / WEIGHTS} is damaged or half-written (")


def test_missing_weights_raise_an_error(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).unlink()
    assert message_of(checkpoint).startswith(f"{checkpoint} has no weights ({WEIGHTS}); it may be ")


def test_a_damaged_shard_or_index_raises_an_error(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).unlink()
    toy_model().save_pretrained(checkpoint, max_shard_size="20KB")
    shard = sorted(checkpoint.glob("*.safetensors"))[1]
    cut(lambda size: size // 2)(shard)
    assert message_of(checkpoint).startswith(f"{shard} is damaged or half-written (")
    shard.unlink()
    assert message_of(checkpoint).startswith(f"{shard} is missing; ")
    index = checkpoint / f"{WEIGHTS}.index.json"
    cut(lambda size: size // 2)(index)
    assert message_of(checkpoint).startswith(f"{index} is damaged or half-written (")


def test_truncated_pickled_weights_raise_an_error(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).unlink()
    torch.save(toy_model().state_dict(), checkpoint / "pytorch_model.bin")
    cut(lambda size: size // 2)(checkpoint / "pytorch_model.bin")
    assert message_of(checkpoint).startswith(
        f"{checkpoint / 'pytorch_model.bin'} is damaged or half-written ("
    )


def test_partly_missing_weights_raise_an_error(checkpoint: Path) -> None:
    weights = load_file(checkpoint / WEIGHTS)
    missing = "model.decoder.layers.0.fc1.bias"
    del weights[missing]
    save_file(weights, checkpoint / WEIGHTS, metadata={"format": "pt"})
    assert f"the weights in {checkpoint} lack 1 of the model's, such as {missing}" in message_of(checkpoint)


def test_weights_of_another_shape_raise_an_error(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "encoder_ffn_dim": 48}))
    expected = f"the weights in {checkpoint} hold model.encoder.layers.0.fc1.bias as [64], and its config"
    assert message_of(checkpoint).startswith(expected)


# Tokenizers and devices.


def test_a_missing_or_damaged_tokenizer_raises_an_error(checkpoint: Path) -> None:
    cut(lambda size: size // 2)(checkpoint / "tokenizer.json")
    assert message_of(checkpoint).startswith(f"{checkpoint / 'tokenizer.json'} is damaged or half-written (")
    (checkpoint / "tokenizer_config.json").unlink()
    assert message_of(checkpoint).startswith(f"{checkpoint} has no tokenizer (")


def test_a_tokenizer_of_another_model_raises_an_error(checkpoint: Path) -> None:
    tokenizer = toy_tokenizer()
    tokenizer_of_another = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer_of_another["model"]["vocab"]["Ġeleven"] = len(tokenizer)
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer_of_another))
    assert f"has {len(tokenizer) + 1} tokens but the model embeds {len(tokenizer)}" in message_of(checkpoint)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cpu:x"])
def test_an_unavailable_device_raises_an_error(checkpoint: Path, device: str) -> None:
    assert message_of(checkpoint, device=device).startswith(f"device '{device}' cannot be used here (")


def test_an_unknown_dtype_raises_an_error(checkpoint: Path) -> None:
    assert message_of(checkpoint, dtype="fp16").startswith("dtype 'fp16' is unknown; expected 'float32'")


def test_an_unreadable_folder_raises_an_error(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    monkeypatch.setattr(os, "listdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert message_of(checkpoint) == f"model folder {checkpoint} cannot be read; check its permissions"
