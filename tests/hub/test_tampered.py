"""Tampered checkpoints are refused with the reason, and none of their code is run."""

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from toy_translation import save_toy_checkpoint
from vaswani import Translator, VaswaniConfig
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_toy_checkpoint(tmp_path / "toy")


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def plant_code(folder: Path) -> Path:
    """Code in the checkpoint that leaves a trace if it is ever run; returns the trace."""
    trace = folder / "run"
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Evil: pass\n")
    return trace


# Another class.


@pytest.mark.parametrize("name", VaswaniConfig.auto_classes)
@pytest.mark.parametrize("trust", [False, True])
def test_a_foreign_class_in_auto_map_is_refused_and_not_run(checkpoint: Path, name: str, trust: bool) -> None:
    trace = plant_code(checkpoint)
    change(checkpoint / "config.json", auto_map={**VaswaniConfig.auto_classes, name: "evil.Evil"})
    words = f"auto_map names 'evil.Evil' for {name}, which is no code of a vaswani model"
    with pytest.raises(ValueError, match=words):
        AutoModelForSeq2SeqLM.from_pretrained(checkpoint, trust_remote_code=trust)
    with pytest.raises(UserError, match=words):
        Translator.from_pretrained(checkpoint)
    assert not trace.exists()


def test_a_class_in_another_repository_is_refused(checkpoint: Path) -> None:
    change(
        checkpoint / "config.json",
        auto_map={"AutoConfig": f"eve/evil--{VaswaniConfig.auto_classes['AutoConfig']}"},
    )
    with pytest.raises(UserError, match=r"auto_map names 'eve/evil--"):
        load_checkpoint(checkpoint)


def test_code_of_an_unknown_model_type_is_not_run(checkpoint: Path) -> None:
    trace = plant_code(checkpoint)
    change(checkpoint / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Evil"})
    with pytest.raises(
        UserError, match="model_type='evil' is unknown to transformers, and checkpoints' own code"
    ):
        Translator.from_pretrained(checkpoint)
    assert not trace.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"attn_implementation": "eve/evil-attention"},
        {"_attn_implementation": {"encoder": "eve/evil@main"}},
        {"decoder": {"attn_implementation": "eve/evil"}},
    ],
)
def test_an_attention_kernel_from_the_hub_is_not_loaded(checkpoint: Path, fields: dict[str, Any]) -> None:
    change(checkpoint / "config.json", **fields)
    with pytest.raises(UserError, match=r"attn_implementation=eve/evil.* is code on the Hub"):
        Translator.from_pretrained(checkpoint)


def test_code_of_a_tokenizer_is_not_run(checkpoint: Path) -> None:
    trace = plant_code(checkpoint)
    change(
        checkpoint / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]},
        tokenizer_class="Evil",
    )
    with pytest.raises(UserError, match="tokenizer"):
        Translator.from_pretrained(checkpoint)
    assert not trace.exists()


def test_with_the_plugin_the_code_in_a_checkpoint_is_not_run(checkpoint: Path) -> None:
    trace = checkpoint / "run"
    for file in checkpoint.glob("*.py"):
        file.write_text(f"open({str(trace)!r}, 'w').close()\n")
    AutoModelForSeq2SeqLM.from_pretrained(checkpoint, trust_remote_code=True)
    AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    Translator.from_pretrained(checkpoint)
    assert not trace.exists()


# Fields.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"d_model": 2**40}, "d_model=1099511627776 must be at least 1 and at most 134,217,728"),
        ({"encoder_layers": 3000}, "encoder_layers=3000 must be (at least 1 and )?at most 1,000"),
        ({"decoder_vocab_size": 0}, "decoder_vocab_size=0 must be at least 1"),
        ({"sparse_block_size": 10**9}, "sparse_block_size=1000000000 must be at least 0 and at most 65,536"),
        ({"d_model": "32"}, "'d_model' expected int, got str"),
        ({"dropout": [0.1]}, "'dropout' with value"),
        ({"auto_map": [1]}, "auto_map=.* must give a class"),
        ({"encoder_attention": {"0": "full"}}, "'encoder_attention' with value"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_absurd_sizes_and_wrong_types_raise_an_error(
    checkpoint: Path, fields: dict[str, Any], words: str
) -> None:
    change(checkpoint / "config.json", **fields)
    with pytest.raises(UserError, match=words):
        load_checkpoint(checkpoint)
    with pytest.raises((ValueError, StrictDataclassError), match=words):
        AutoConfig.from_pretrained(checkpoint)


@pytest.mark.parametrize("fields", [{"encoder_ffn_dim": 2**27}, {"encoder_layers": 500}], ids=str)
def test_a_model_larger_than_its_weights_is_not_allocated(checkpoint: Path, fields: dict[str, int]) -> None:
    change(checkpoint / "config.json", **fields)
    with pytest.raises(UserError, match=r"describes a model of [\d,]+ parameters, and the weights .* hold"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_errors_do_not_advise_running_the_code_of_a_checkpoint(checkpoint: Path, file: str) -> None:
    code = {"AutoConfig": "mine.Mine", "AutoTokenizer": ["mine.Mine", None]}
    change(checkpoint / file, auto_map=code, model_type="mine", tokenizer_class="Mine")
    (checkpoint / "mine.py").write_text("raise SystemExit('ran')")
    message = refusal_of(checkpoint)
    assert message is not None
    assert str(checkpoint) in message
    assert "trust_remote_code" not in message
    assert "not run" in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
FIELDS = sorted(
    {*VaswaniConfig().to_dict(), "torch_dtype", "id2label", "tie_encoder_decoder", "per_layer_config"}
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_any_configuration_loads_or_is_refused_in_one_line(fields: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_toy_checkpoint(Path(folder))
        change(Path(folder) / "config.json", **fields)
        refusal = refusal_of(Path(folder))
    assert refusal is None or (folder in refusal and "\n" not in refusal)


def refusal_of(checkpoint: Path) -> str | None:
    try:
        load_checkpoint(checkpoint)
    except UserError as error:
        return str(error)
    return None


# Weights.


class Payload:
    """What a pickle runs when it is loaded."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_a_pickle_in_place_of_safetensors(checkpoint: Path) -> None:
    trace = checkpoint / "run"
    (checkpoint / "model.safetensors").write_bytes(pickle.dumps({"weight": Payload(trace)}))
    with pytest.raises(UserError, match="is damaged or half-written"):
        load_checkpoint(checkpoint)
    with pytest.raises(Exception, match="header"):
        AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    assert not trace.exists()


def test_pickled_weights_with_code_are_refused_and_not_run(checkpoint: Path) -> None:
    trace = checkpoint / "run"
    (checkpoint / "model.safetensors").unlink()
    torch.save({"weight": Payload(trace)}, checkpoint / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"hold more than tensors, .*was not run; .* safetensors$"):
        load_checkpoint(checkpoint)
    assert not trace.exists()
    torch.load(checkpoint / "pytorch_model.bin", weights_only=False)  # it would have
    assert trace.exists()
