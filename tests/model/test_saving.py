"""A saved checkpoint loads through the Auto classes with the same outputs, for every kind of tied weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from tiny import batch, tiny_model
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel

TIES: dict[str, dict[str, Any]] = {
    "all-shared": {},
    "stacks-shared": {"tie_word_embeddings": False},
    "output-tied": {"share_encoder_decoder_embeddings": False},
    "nothing-tied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "two-vocabularies-tied": {"decoder_vocab_size": 53},
    "two-vocabularies-untied": {"decoder_vocab_size": 53, "tie_word_embeddings": False},
}
EMBEDDING_MATRICES = {
    "all-shared": 1,
    "stacks-shared": 2,
    "output-tied": 2,
    "nothing-tied": 3,
    "two-vocabularies-tied": 2,
    "two-vocabularies-untied": 3,
}


def matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [
        model.model.encoder.embed_tokens.weight,
        model.model.decoder.embed_tokens.weight,
        model.lm_head.weight,
    ]


def saved_names(folder: Path) -> set[str]:
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names |= set(tensors.keys())
    return names


@pytest.mark.parametrize("ties", TIES)
def test_tied_weights_survive_saving(ties: str, tmp_path: Path) -> None:
    model, data = tiny_model(**TIES[ties]), batch(vocab_size=53)
    expected = model(**data).logits
    assert len({id(p) for p in matrices(model)}) == EMBEDDING_MATRICES[ties]
    model.save_pretrained(tmp_path)
    assert (
        sum("embed_tokens" in n or "lm_head" in n for n in saved_names(tmp_path)) == EMBEDDING_MATRICES[ties]
    )
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(again) is VaswaniForConditionalGeneration
    assert torch.equal(again(**data).logits, expected)
    assert len({id(p) for p in matrices(again)}) == EMBEDDING_MATRICES[ties]
    # Still one after a step of training, and in the loss's gradient.
    again(**data).loss.backward()
    torch.optim.SGD(again.parameters(), lr=0.1).step()
    unique = {tuple(p[3:20].flatten().tolist()) for p in matrices(again)}
    assert len(unique) == EMBEDDING_MATRICES[ties]


@pytest.mark.parametrize("ties", TIES)
def test_bfloat16_and_shards_survive_saving(ties: str, tmp_path: Path) -> None:
    model, data = tiny_model(**TIES[ties]).to(torch.bfloat16), batch(vocab_size=53)
    expected = model(**data).logits
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    assert again.dtype == torch.bfloat16
    assert torch.equal(again(**data).logits, expected)


@pytest.mark.parametrize(
    "options", [{"device_map": "cpu"}, {"device_map": "auto"}, {"dtype": torch.bfloat16}], ids=str
)
def test_loading_with_device_map_or_dtype_gives_the_same_logits(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model, data = tiny_model(), batch()
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **options)
    expected = model.to(options.get("dtype", torch.float32))(**data).logits
    torch.testing.assert_close(again(**data).logits.cpu(), expected, rtol=0, atol=0)


def test_a_model_split_over_devices_computes_the_same(tmp_path: Path) -> None:
    """A hand-made device map, the decoder's half on disk: hooks move layers in whole."""
    model, data = tiny_model(), batch()
    model.save_pretrained(tmp_path)
    layers = {f"model.decoder.layers.{i}": "disk" for i in range(2)}
    parts = (
        "model.encoder",
        "model.decoder.embed_tokens",
        "model.decoder.embed_positions",
        "model.decoder.layer_norm",
    )
    again = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path,
        device_map={**dict.fromkeys((*parts, "lm_head"), "cpu"), **layers},
        offload_folder=tmp_path / "offload",
    )
    with torch.no_grad():
        torch.testing.assert_close(again(**data).logits, model(**data).logits)


def test_the_base_model_loads_from_a_headed_checkpoint_and_back(tmp_path: Path) -> None:
    model, data = tiny_model(), batch()
    model.save_pretrained(tmp_path / "headed")
    base = AutoModel.from_pretrained(tmp_path / "headed")
    assert type(base) is VaswaniModel
    start = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(data.pop("labels"))}
    expected = model.model(**data, **start).last_hidden_state
    assert torch.equal(base(**data, **start).last_hidden_state, expected)
    base.save_pretrained(tmp_path / "base")
    headed = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    assert torch.equal(headed(**data, **start).logits, model(**data, **start).logits)


@pytest.mark.slow
def test_a_process_that_never_built_the_model_loads_it(tmp_path: Path) -> None:
    model = tiny_model(norm_order="pre", decoder_vocab_size=53)
    model.save_pretrained(tmp_path)
    program = f"""
import json, torch, vaswani
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained({str(tmp_path)!r})
ids = torch.arange(3, 13).view(2, 5)
print(json.dumps(model(input_ids=ids, decoder_input_ids=ids).logits.double().tolist()))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ids = torch.arange(3, 13).view(2, 5)
    expected = model(input_ids=ids, decoder_input_ids=ids).logits.double()
    torch.testing.assert_close(
        torch.tensor(json.loads(ran.stdout.splitlines()[-1]), dtype=torch.float64), expected
    )


def test_fields_that_affect_the_outputs_are_saved(tmp_path: Path) -> None:
    fields = {
        "norm_order": "pre",
        "sinusoidal_layout": "concatenated",
        "activation_function": "silu",
        "ffn_bias": False,
    }
    tiny_model(**fields).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is VaswaniConfig
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize("ties", TIES)
def test_vocabularies_can_be_resized(ties: str, tmp_path: Path) -> None:
    model, data = tiny_model(**TIES[ties]), batch(vocab_size=53)
    before = model(**data).logits
    target_size = model.config.decoder_vocab_size
    if model.config.share_encoder_decoder_embeddings:
        with pytest.raises(ValueError, match="resize both with resize_token_embeddings"):
            model.resize_decoder_token_embeddings(70)
    model.resize_token_embeddings(70)
    if not model.config.share_encoder_decoder_embeddings:  # although both may have one size
        assert model(**data).logits.shape[-1] == target_size
        model.resize_decoder_token_embeddings(70)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (70, 70)
    after = model(**data).logits
    assert after.shape[-1] == 70
    torch.testing.assert_close(after[..., : before.shape[-1]], before)
    assert len({id(p) for p in matrices(model)}) == EMBEDDING_MATRICES[ties]
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)(**data).logits, after)
