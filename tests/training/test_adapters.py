"""Adapters (LoRA): trained, resumed, saved, loaded by plain PEFT, merged."""

import json
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import peft
import pytest
import torch
from continued_runs import config_for, pairs
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from library_tokenizers import SOURCES
from library_translators import save_translator
from tiny_runs import datasets_cache, leave_out_slow_parts
from toy_translation import save_toy_checkpoint
from vaswani import Translator
from vaswani.errors import UserError
from vaswani.hub.adapters import add_adapter
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.interop.folders import convert_folder, merge_folder
from vaswani.training.runs.translation import ContinuedRun, train

__all__ = ["datasets_cache", "pairs"]

leave_out_slow_parts()

LORA: dict[str, Any] = {"lora_rank": 4}


def save_model(kind: str, folder: Path) -> Path:
    return save_toy_checkpoint(folder) if kind == "vaswani" else save_translator(kind, folder)


def logits(model: Any) -> torch.Tensor:
    ids = torch.tensor([[5, 6, 7, 8, 2]])
    with torch.no_grad():
        return model.eval()(input_ids=ids, decoder_input_ids=ids.flip(1), use_cache=False).logits


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vaswani", "marian", "bart", "t5", "nllb"])
def test_an_adapter_trains_resumes_loads_and_merges(kind: str, pairs: Path, tmp_path: Path) -> None:
    model, run, half = save_model(kind, tmp_path / "model"), tmp_path / "run", tmp_path / "half"
    before = load_file(model / "model.safetensors")
    train(config_for(model, pairs, **LORA))
    assert not (run / "model.safetensors").exists()
    adapter = load_file(run / "adapter_model.safetensors")
    assert any(weights.any() for name, weights in adapter.items() if "lora_B" in name)

    train(config_for(model, pairs, **LORA, output_dir=half, save_steps=2))
    (half / "adapter_model.safetensors").unlink()
    (half / "checkpoint-4").rename(tmp_path / "away")
    train(config_for(model, pairs, **LORA, output_dir=half, save_steps=2, resume_from_checkpoint="true"))
    resumed = load_file(half / "adapter_model.safetensors")
    assert all(torch.equal(weights, resumed[name]) for name, weights in adapter.items())

    original = AutoModelForSeq2SeqLM.from_pretrained(model)
    assert all(torch.equal(original.state_dict()[name], weights) for name, weights in before.items())
    plain = logits(original)
    by_peft = logits(peft.PeftModel.from_pretrained(original, str(run)))
    ours = logits(load_checkpoint(run, device="cpu")[0])
    merge_folder(str(run), tmp_path / "merged")
    merged = logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(ours, by_peft, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(merged, ours, rtol=0, atol=0)
    assert (ours - plain).abs().max() > 1e-3

    assert len(Translator.from_pretrained(run, num_beams=1, max_length=8)(SOURCES[:2])) == 2
    assert "model" in (run / "README.md").read_text()


def adapted(pairs: Path, tmp_path: Path, **options: Any) -> Any:
    run = ContinuedRun(config_for(save_translator("marian", tmp_path / "model"), pairs, **LORA | options))
    run.check()
    return run.build_model(run.build_tokenizers(None))  # type: ignore[arg-type]


def test_only_the_adapter_is_trained_in_all_linear_layers_but_the_output(pairs: Path, tmp_path: Path) -> None:
    model = adapted(pairs, tmp_path)
    trained = [name for name, weights in model.named_parameters() if weights.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in trained}
    assert layers == {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}


def test_each_option_changes_the_adapter(pairs: Path, tmp_path: Path) -> None:
    config = adapted(pairs, tmp_path).peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 8, 0)
    model = adapted(
        pairs, tmp_path, lora_rank=2, lora_alpha=6, lora_dropout=0.5, lora_targets=["q_proj", "v_proj"]
    )
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (2, 6, 0.5)
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name, _ in model.named_parameters()}
    assert {"q_proj", "v_proj"} == {
        name.partition(".lora_")[0].rpartition(".")[2]
        for name, weights in model.named_parameters()
        if weights.requires_grad
    }
    assert layers
    assert next(w for name, w in model.named_parameters() if "lora_A" in name).shape[0] == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lora_targets": "query"}, "lora_targets=query is no linear layer.*'q_proj'"),
        ({"lora_targets": "lm_head"}, "lora_targets=lm_head"),
        ({"lora_rank": None, "lora_alpha": 3}, "lora_alpha=3.0 has no effect without lora_rank"),
        ({"lora_rank": None, "lora_dropout": 0.5}, "lora_dropout=0.5 has no effect"),
        ({"freeze": "encoder"}, "leave out freeze"),
        ({"convert": True}, "vaswani convert"),
        ({"fsdp_size": 2}, "fsdp_size"),
        (
            {"average_checkpoints": 2},
            "average_checkpoints=2 cannot be combined with an adapter",
        ),
        ({"push_to_hub": True}, "nobody else can use an adapter"),
    ],
)
def test_invalid_options_raise_an_error_before_reading_the_corpus(
    options: dict[str, Any], told: str, pairs: Path, tmp_path: Path
) -> None:
    given = {name: value for name, value in (LORA | options).items() if value is not None}
    config = config_for(save_translator("marian", tmp_path / "model"), pairs, **given)
    with pytest.raises(UserError, match=told):
        ContinuedRun(config).check()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an adapter, beside its model."""
    folder = tmp_path_factory.mktemp("adapter")
    file = folder / "pairs.tsv"
    file.write_text("source\ttarget\n" + "".join(f"{text}\t{text}\n" for text in SOURCES))
    train(config_for(save_translator("marian", folder / "model"), file, **LORA, max_steps=1))
    return folder / "run"


def test_an_adapter_cannot_be_the_base_of_another(trained: Path, pairs: Path) -> None:
    with pytest.raises(UserError, match="vaswani merge"):
        ContinuedRun(config_for(trained, pairs, **LORA)).check()


def test_a_missing_base_model_raises_an_error_that_names_the_adapter(trained: Path, tmp_path: Path) -> None:
    folder = copytree(trained, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "./moved"}))
    told = r"the adapter in \S+adapter needs its model ./moved, as its adapter_config.json says: .* does not"
    with pytest.raises(UserError, match=told):
        load_checkpoint(folder, device="cpu")


def test_an_adapter_can_be_trained_further_as_a_whole_model(
    trained: Path, pairs: Path, tmp_path: Path
) -> None:
    train(config_for(trained, pairs, output_dir=tmp_path / "whole", max_steps=1))
    assert (tmp_path / "whole" / "model.safetensors").exists()


def test_a_model_without_an_adapter_is_not_merged(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no adapter"):
        merge_folder(str(trained.parent / "model"), tmp_path / "merged")


@pytest.mark.parametrize("fault", ["other model", "damaged", "missing", "lacks", "not finite"])
def test_an_adapter_that_does_not_fit_is_refused(fault: str, trained: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = copytree(trained, tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    if fault == "damaged":
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    elif fault == "missing":
        file.unlink()
    else:
        (folder / "model_hashes.json").unlink()
        first = next(iter(weights))
        if fault == "lacks":
            del weights[first]
        elif fault == "not finite":
            weights[first][0] = torch.nan
        else:
            weights = {name: tensor[:1] for name, tensor in weights.items()}
        save_file(weights, file)
    told = {"damaged": "is damaged", "missing": "has no adapter_model", "not finite": "NaN"}
    with pytest.raises(UserError, match=told.get(fault, "does not fit")):
        load_checkpoint(folder, device="cpu")


@pytest.mark.parametrize(
    ("changed", "is_tied"),
    [
        ({"target_modules": ["embed_tokens"]}, True),
        ({"target_modules": ["lm_head"]}, True),
        ({"target_modules": ["q_proj", "fc1"]}, False),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, False),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]}, False),
    ],
    ids=str,
)
def test_an_adapter_of_tied_layers_is_refused(changed: dict[str, Any], is_tied: bool, tmp_path: Path) -> None:
    base, folder = save_toy_checkpoint(tmp_path / "base"), tmp_path / "adapter"
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_pretrained(base)
    assert model.config.tie_word_embeddings
    config = peft.LoraConfig(r=2, task_type="SEQ_2_SEQ_LM", init_lora_weights=False, **changed)
    copytree(base, folder, ignore=lambda _, names: [name for name in names if name.endswith(".safetensors")])
    adapted = peft.get_peft_model(model, config)
    expected = logits(adapted)
    adapted.save_pretrained(folder)
    if is_tied:
        layer = changed["target_modules"][0]
        with pytest.raises(UserError, match=rf"changes \S*{layer}, which shares its weights"):
            load_checkpoint(folder, device="cpu")
    else:
        torch.testing.assert_close(logits(load_checkpoint(folder, device="cpu")[0]), expected)


@pytest.mark.parametrize("kind", ["vaswani", "marian"])
@pytest.mark.parametrize("head_is_saved", [False, True])
def test_a_merged_model_with_two_vocabularies_shares_what_it_shared(
    kind: str, head_is_saved: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    base, folder = save_toy_checkpoint(tmp_path / "base", separate=True), tmp_path / "adapter"
    if kind == "marian":
        convert_folder(str(base), tmp_path / "marian", to="marian")
        base = tmp_path / "marian"
    more = {"modules_to_save": ["lm_head"]} if head_is_saved else {}
    config = peft.LoraConfig(
        r=2, task_type="SEQ_2_SEQ_LM", init_lora_weights=False, target_modules=["q_proj"], **more
    )
    adapted = peft.get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(base), config)
    copytree(base, folder, ignore=ignore_patterns("*.safetensors", "model_hashes.json"))
    adapted.save_pretrained(folder)
    recwarn.clear()
    merge_folder(str(folder), tmp_path / "merged")
    assert not [each for each in recwarn if "no longer tied" in str(each.message)]
    merged: Any = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(adapted))
    assert merged.config.tie_word_embeddings is not head_is_saved
    assert (merged.lm_head.weight is merged.model.decoder.embed_tokens.weight) is not head_is_saved


def test_an_adapter_records_its_base_model_by_the_given_name(tmp_path: Path) -> None:
    """A model of the Hub lies in a folder of the cache, which is no use to others."""
    folder = save_toy_checkpoint(tmp_path / "snapshot")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.name_or_path == str(folder)
    adapted = add_adapter(model, "ada/base", rank=2, alpha=4, dropout=0.0, targets=[])
    adapted.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "ada/base"


def another_base(trained: Path, folder: Path, change: float) -> Path:
    """The adapter beside a copy of its model, of which each weight is multiplied by 1 + `change`."""
    from safetensors.torch import save_file

    model, adapter = copytree(trained.parent / "model", folder / "model"), copytree(trained, folder / "run")
    weights = {name: tensor * (1 + change) for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    (model / "model_hashes.json").unlink(missing_ok=True)
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(model)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "model_hashes.json").unlink()
    return adapter


def test_other_weights_of_the_same_shape_are_refused(trained: Path, tmp_path: Path) -> None:
    adapter = another_base(trained, tmp_path, 0.02)
    with pytest.raises(UserError, match=r"it was trained with other weights than these \(\S+ differs\); use"):
        load_checkpoint(adapter, device="cpu")
    with pytest.raises(UserError, match="other weights"):
        merge_folder(str(adapter), tmp_path / "merged")
    (adapter / "adapted_sample.json").unlink()  # as plain PEFT saves it
    load_checkpoint(adapter, device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounded_weights_of_the_right_base_model_are_accepted(
    dtype: str, trained: Path, tmp_path: Path
) -> None:
    load_checkpoint(another_base(trained, tmp_path, 0.0), device="cpu", dtype=dtype)
