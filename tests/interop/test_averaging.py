"""`vaswani average` of named folders, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
)

from every_command import save_models
from toy_labels import save_toy_classifier, save_toy_decoder, save_toy_encoder
from toy_translation import save_toy_checkpoint
from vaswani import Translator
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.interop import average

SAVE = {
    "translator": (save_toy_checkpoint, AutoModelForSeq2SeqLM),
    "encoder": (save_toy_encoder, AutoModelForMaskedLM),
    "decoder": (save_toy_decoder, AutoModelForCausalLM),
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def change(folder: Path, by: Any) -> None:
    """Apply a function to each tensor of a model, and save the model."""
    for file in folder.glob("*.safetensors"):
        changed = {name: by(tensor).contiguous() for name, tensor in load_file(file).items()}
        save_file(changed, file, metadata={"format": "pt"})


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def several(folder: Path, kind: str = "translator", count: int = 3) -> list[Path]:
    """Models of one shape with other weights: of each value x, x and multiples of it plus a constant."""
    folders = [SAVE[kind][0](folder / f"model-{number}") for number in range(count)]
    for number, model in enumerate(folders):
        change(model, lambda tensor, number=number: tensor * (1 + 0.3 * number) + 0.1 * number)
    return folders


@pytest.mark.parametrize("kind", SAVE)
def test_the_weights_are_the_mean(kind: str, tmp_path: Path, capsys) -> None:
    folders = several(tmp_path, kind)
    assert run(["average", *map(str, folders), str(tmp_path / "out")]) == 0
    assert f"saved {tmp_path / 'out'}: " in capsys.readouterr().out
    every, found = [weights(folder) for folder in folders], weights(tmp_path / "out")
    assert found.keys() == every[0].keys()
    for name, tensor in found.items():
        expected = torch.stack([each[name].double() for each in every]).mean(0)
        torch.testing.assert_close(tensor.double(), expected, rtol=2**-24, atol=0)  # half a unit of rounding
        assert not torch.equal(tensor, every[0][name])
    model: PreTrainedModel = SAVE[kind][1].from_pretrained(tmp_path / "out")
    first = SAVE[kind][1].from_pretrained(folders[0])
    assert type(model) is type(first)
    assert model.config.to_dict() | {"_name_or_path": ""} == first.config.to_dict() | {"_name_or_path": ""}


def test_models_of_separate_trainings_are_averaged_with_a_warning(tmp_path: Path, caplog) -> None:
    """Their units are in another order, as those of random weights are."""
    folders = several(tmp_path, count=3)
    average(folders, tmp_path / "alike")
    assert not caplog.records
    generator = torch.Generator().manual_seed(0)
    change(
        folders[1],
        lambda tensor: tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].view_as(tensor),
    )
    average(folders, tmp_path / "unlike")
    (record,) = caplog.records
    assert f"the weights of {folders[1]} are unrelated to those of {folders[0]}" in record.getMessage()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_the_mean_of_equal_models_is_bit_identical(dtype: torch.dtype, count: int, tmp_path: Path) -> None:
    folders = [save_toy_checkpoint(tmp_path / f"model-{number}") for number in range(count)]
    for folder in folders:
        change(folder, lambda tensor: torch.where(tensor.abs() < 0.01, -0.0, tensor).to(dtype))
        edit(folder / "config.json", dtype=str(dtype).removeprefix("torch."))
    average(folders, tmp_path / "out")
    before, after = weights(folders[0]), weights(tmp_path / "out")
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    assert {tensor.dtype for tensor in after.values()} == {dtype}
    assert any(
        (tensor.view(bits) == torch.tensor(-0.0, dtype=dtype).view(bits)).any() for tensor in before.values()
    )
    assert all(torch.equal(after[name].view(bits), before[name].view(bits)) for name in before)


def test_sums_do_not_round_to_the_dtype(tmp_path: Path) -> None:
    folders = several(tmp_path, count=3)
    for folder, value in zip(folders, (1.0, 2.0**-24, 2.0**-24), strict=True):
        change(folder, lambda tensor, value=value: torch.full_like(tensor, value))
    average(folders, tmp_path / "out")
    expected = torch.tensor((1 + 2.0**-23) / 3, dtype=torch.float64).float()
    assert expected != torch.tensor(1 / 3, dtype=torch.float64).float()
    assert all((tensor == expected).all() for tensor in weights(tmp_path / "out").values())


@pytest.mark.parametrize("separate", [False, True])
def test_the_mean_keeps_the_tokenizers_of_the_models(separate: bool, tmp_path: Path, capsys) -> None:
    folders = [save_toy_checkpoint(tmp_path / f"model-{number}", separate) for number in range(2)]
    change(folders[1], lambda tensor: tensor * 1.01)
    average(folders, tmp_path / "out")
    sources = ["one two three", "nine"]
    assert Translator.from_pretrained(tmp_path / "out")(sources) == Translator.from_pretrained(folders[0])(
        sources
    )
    source = tmp_path / "in.txt"
    source.write_text("one two three\n")
    assert (
        run(["translate", "--model", str(tmp_path / "out"), "--device", "cpu", "--input", str(source)]) == 0
    )
    assert capsys.readouterr().out.strip()
    before, after = (
        {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (folders[0], tmp_path / "out")
    )
    assert after.keys() - before.keys() == {"README.md", "averaged.json", "model_hashes.json"}
    assert before.keys() <= after.keys()
    assert {name for name in before if before[name] != after[name]} == {"model.safetensors"}
    assert "the mean of 2 checkpoints (`model-0`, `model-1`)" in (tmp_path / "out" / "README.md").read_text()


def test_tokenizers_that_differ_only_by_use_are_accepted(tmp_path: Path) -> None:
    folders = several(tmp_path, count=2)
    tokenizer = AutoTokenizer.from_pretrained(folders[1], local_files_only=True)
    tokenizer(["one", "one two"], padding=True, truncation=True, max_length=2)
    tokenizer.save_pretrained(folders[1])
    edit(folders[1] / "config.json", transformers_version="5.99.0")
    files = [(folder / "tokenizer_config.json").read_bytes() for folder in folders]
    assert files[0] != files[1]
    average(folders, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer_config.json").read_bytes() == files[0]


def test_shards_are_read_by_name_and_written_like_those_of_the_first(tmp_path: Path) -> None:
    folders = several(tmp_path, count=2)
    average(folders, tmp_path / "whole")
    for folder, size in zip(folders, ("20KB", "50KB"), strict=True):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size=size)
    shards, others = ({path.name for path in folder.glob("*.safetensors")} for folder in folders)
    assert 1 < len(others) < len(shards)
    average(folders, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == shards
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "out")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")


def test_models_of_the_library_are_averaged_too(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    models = [BertForMaskedLM(config) for _ in range(2)]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / f"bert-{number}")
    average([tmp_path / "bert-0", tmp_path / "bert-1"], tmp_path / "out")
    mean = BertForMaskedLM.from_pretrained(tmp_path / "out")
    expected = (models[0].cls.predictions.bias.double() + models[1].cls.predictions.bias.double()) / 2
    assert torch.equal(mean.cls.predictions.bias, expected.float())


# ------------------------------------------------------------------------------------------ what is refused


def test_other_kinds_of_model_name_the_field_and_both_values(tmp_path: Path, capsys) -> None:
    models = save_models(tmp_path)
    assert (
        run(["average", *(str(models / name) for name in ("encoder", "decoder")), str(tmp_path / "out")]) == 2
    )
    said = capsys.readouterr().err
    assert (
        f"config.json has model_type vaswani_encoder in {models / 'encoder'} and vaswani_decoder in" in said
    )
    assert f"in {models / 'decoder'}: only checkpoints of one model can be averaged" in said
    assert not (tmp_path / "out").exists()


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.encoder.layers.0.fc1.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.encoder.layers.0.fc1.bias"] = torch.zeros(65)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_vocabulary(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["!"], tokenizer["model"]["vocab"]['"'] = 4, 3
    path.write_text(json.dumps(tokenizer))


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_adapter(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


REFUSED = {
    "configuration": (
        lambda folder: edit(folder / "config.json", dropout=0.25),
        r"config.json has dropout 0.1 in .*one and 0.25 in .*other: only checkpoints of one model",
    ),
    "generation": (
        lambda folder: edit(folder / "generation_config.json", eos_token_id=7),
        r"generation_config.json has eos_token_id \d+ in .*one and 7 in .*other",
    ),
    "vocabulary": (change_vocabulary, r"tokenizer.json has model.vocab.! 3 in .*one and 4 in .*other"),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        r"one has tokenizer.json but .*other does not",
    ),
    "shape": (
        reshape_tensor,
        r"encoder.layers.0.fc1.bias has shape \[64\] in .*one and \[65\] in .*other",
    ),
    "dtype": (
        lambda folder: change(folder, torch.Tensor.half),
        r" has dtype F32 in .*one and F16 in .*other",
    ),
    "fewer tensors": (drop_tensor, r"one has a tensor .*layers.0.fc1.bias but .*other does not"),
    "not finite": (
        lambda folder: change(folder, lambda tensor: tensor * float("nan")),
        r"other are not finite numbers",
    ),
    "pickled": (pickled, r"pytorch_model.bin is pickled; only safetensors can be averaged: .* by AutoModel"),
    "adapter": (as_adapter, r"other holds an adapter, and a whole model is needed: vaswani merge"),
    "truncated": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-9]
        ),
        r"model.safetensors is damaged",
    ),
    "no model": (lambda folder: (folder / "config.json").unlink(), r"other holds no model"),
    "half-written": (
        lambda folder: (folder / "manifest.json").write_text('{"files": {"optimizer.pt": "0"}}'),
        r"other is not a complete checkpoint: optimizer.pt is missing; use another one",
    ),
    "manifest": (lambda folder: (folder / "manifest.json").write_text("{"), r"manifest.json is damaged"),
    "hash": (
        lambda folder: (folder / "model_hashes.json").write_text('{"sha256": {"config.json": "0"}}'),
        r"config.json is damaged: its hash differs",
    ),
}


def test_different_generation_configs_are_accepted_and_the_first_is_kept(tmp_path: Path, caplog) -> None:
    folders = [save_toy_checkpoint(tmp_path / name) for name in ("one", "other")]
    for folder, beams in zip(folders, (3, 5), strict=True):
        edit(folder / "generation_config.json", num_beams=beams)
    average(folders, tmp_path / "mean")
    assert json.loads((tmp_path / "mean" / "generation_config.json").read_text())["num_beams"] == 3
    assert "generation_config.json has num_beams 3 in" in caplog.text
    assert "the mean keeps that of the first" in caplog.text


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_do_not_match_raise_an_error_and_leave_no_output(
    case: str, tmp_path: Path, capsys
) -> None:
    folders = [save_toy_checkpoint(tmp_path / name) for name in ("one", "other")]
    damage, message = REFUSED[case]
    damage(folders[1])
    with pytest.raises(UserError, match=message):
        average(folders, tmp_path / "out")
    assert run(["average", *map(str, folders), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_without_its_manifest_is_refused(tmp_path: Path) -> None:
    half = save_toy_checkpoint(tmp_path / "unfinished-checkpoint-4" / "checkpoint-4")
    whole = save_toy_checkpoint(tmp_path / "whole")
    message = "checkpoint-4 is not a complete checkpoint: manifest.json, which is written last, is missing"
    with pytest.raises(UserError, match=message):
        average([whole, half], tmp_path / "out")


def test_a_repeated_checkpoint_or_none_raises_an_error(tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "model")
    with pytest.raises(UserError, match="model is given more than once; give each checkpoint once"):
        average([folder, tmp_path / "model" / ".." / "model"], tmp_path / "out")
    with pytest.raises(UserError, match="nothing to average"):
        average([], tmp_path / "out")


def test_integers_must_be_equal(tmp_path: Path) -> None:
    folders = [save_toy_classifier(tmp_path / f"model-{number}", "tagging") for number in range(2)]
    for number, folder in enumerate(folders):
        tensors = load_file(folder / "model.safetensors")
        save_file(
            {**tensors, "steps": torch.tensor([number])},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
    with pytest.raises(
        UserError, match=r"steps holds torch.int64 and differs between .*: integers have no mean"
    ):
        average(folders, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_non_empty_output_folder_is_refused(tmp_path: Path, capsys) -> None:
    folders = several(tmp_path, count=2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    assert run(["average", *map(str, folders), str(tmp_path / "out")]) == 2
    assert "is not an empty folder; give another one for the model" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_averaging_does_not_change_the_input_files(tmp_path: Path) -> None:
    folders = several(tmp_path, count=2)
    before = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    average(folders, tmp_path / "out")
    assert {
        path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()
    } == before


def test_the_card_of_a_mean_shows_a_text_of_the_evaluation_of_a_run(tmp_path: Path) -> None:
    folders = several(tmp_path, count=2)
    example = {"source": "one two", "translation": "zwei", "reference": "eins zwei"}
    (folders[1] / "evaluation.json").write_text(json.dumps({"examples": [example]}))
    average(folders, tmp_path / "out")
    averaged = json.loads((tmp_path / "out" / "averaged.json").read_text())
    assert averaged == {"checkpoints": ["model-0", "model-1"], "example": {"source": "one two"}}
    assert 'tokenizer(["one two"], return_tensors="pt")' in (tmp_path / "out" / "README.md").read_text()
