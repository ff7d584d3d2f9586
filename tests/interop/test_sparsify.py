"""A sparse model of the library is the dense one under the pattern's mask, and stays sparse when saved.

Five families, with their heads and all that is done with models; `test_sparsify_any_model.py` has others.
"""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertForMaskedLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from sparse_reference import under_pattern
from tiny import GRAPHS_ALONE, enable_activation_checkpointing
from vaswani import sparsify
from vaswani.errors import UserError
from vaswani.interop.sparsify import SparseConfig
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.sparse_pattern import SparsePattern

VOCABULARY, LENGTH = 61, 45  # eleven blocks and a token
PATTERN = {"block_size": 4, "window": 3, "num_global": 1, "num_random": 1}

SIZES: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "Bart": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,  # not the encoder's number, so that a mix-up shows
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 128,
    },
    "Llama": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
    },
}
SIZES["Roberta"] = SIZES["Bert"]
# Weights far from zero, so that attention matters.
SCALES = {family: {"init_std" if family == "Bart" else "initializer_range": 0.3} for family in SIZES}
DROPOUTS = {
    "Bert": ("attention_probs_dropout_prob", "hidden_dropout_prob"),
    "Roberta": ("attention_probs_dropout_prob", "hidden_dropout_prob"),
    "GPT2": ("attn_pdrop", "resid_pdrop", "embd_pdrop"),
    "Bart": ("dropout",),
    "Llama": (),
}
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

DECODER = {"is_decoder": True}
CASES: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {},
    "BertForSequenceClassification": {},
    "BertModel": {},
    "BertLMHeadModel": DECODER,
    "RobertaForMaskedLM": {},
    "RobertaForTokenClassification": {},
    "RobertaForCausalLM": DECODER,
    "GPT2LMHeadModel": {"scale_attn_by_inverse_layer_idx": True},
    "GPT2ForSequenceClassification": {},
    "BartForConditionalGeneration": {},
    "BartForSequenceClassification": {},
    "BartForCausalLM": {},
    "LlamaForCausalLM": {},
    "LlamaModel": {},
}
AUTO = {
    "MaskedLM": AutoModelForMaskedLM,
    "SequenceClassification": AutoModelForSequenceClassification,
    "TokenClassification": AutoModelForTokenClassification,
    "Model": AutoModel,
    "LMHeadModel": AutoModelForCausalLM,
    "CausalLM": AutoModelForCausalLM,
    "ConditionalGeneration": AutoModelForSeq2SeqLM,
}


def auto_class(name: str) -> Any:
    return next(auto for end, auto in reversed(AUTO.items()) if name.endswith(end))


def family_of(name: str) -> str:
    return next(family for family in SIZES if name.startswith(family))


def dense_model(name: str, **fields: Any) -> PreTrainedModel:
    """A tiny model in evaluation mode, whose biases are random too."""
    family = family_of(name)
    dropout = dict.fromkeys(DROPOUTS[family], 0.0)
    options = {**SIZES[family], **SCALES[family], **TOKENS, **dropout, **CASES.get(name, {}), **fields}
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def sparse_model(name: str, pattern: dict[str, int] = PATTERN, **fields: Any) -> Any:
    return sparsify(dense_model(name, **fields), **pattern)


def batch(padding: str = "right", rows: int = 3, length: int = LENGTH) -> dict[str, torch.Tensor]:
    input_ids = torch.randint(3, VOCABULARY, (rows, length))
    attention_mask = torch.ones_like(input_ids)
    for row in range(1, rows):
        if padding == "holes":
            attention_mask[row, row + 3 :: 7] = 0
        else:
            attention_mask[row, -row * (length // 6) :] = 0
    if padding == "left":
        attention_mask = attention_mask.flip(1)
    last = (attention_mask * torch.arange(length)).argmax(1)
    input_ids[torch.arange(rows), last] = TOKENS["eos_token_id"]  # BART classifies by it
    return {
        "input_ids": input_ids.where(attention_mask == 1, TOKENS["pad_token_id"]),
        "attention_mask": attention_mask,
    }


def reference_pattern(module: nn.Module, config: Any) -> SparsePattern | None:
    """Which tokens see which in an attention module of a tiny model, written independently of `sparsify`."""
    kind = type(module).__name__
    if "Cross" in kind or getattr(module, "is_cross_attention", False):
        return None
    if kind == "BartAttention":
        if module.is_decoder and not module.is_causal:
            return None
        heads, causal = (2, True) if module.is_decoder else (4, False)
    else:
        heads, causal = 4, kind in ("GPT2Attention", "LlamaAttention") or config.is_decoder
    numbers = [PATTERN[name] for name in ("block_size", "window", "num_global", "num_random")]
    return SparsePattern(heads, *numbers, seed=0, layer=module.layer_idx, causal=causal)


@contextmanager
def reference_attention(model: PreTrainedModel) -> Iterator[None]:
    """The library's eager attention, which sees the dense mask of each module's pattern."""
    file = import_module(type(model).__module__)
    original: Callable = file.eager_attention_forward

    def masked(module, query, key, value, attention_mask, *args, **kwargs):
        pattern = reference_pattern(module, model.config)
        if pattern is not None:
            lowest = torch.finfo(torch.float32).min  # Llama's softmax is in float32
            attention_mask = under_pattern(pattern, query, key, attention_mask, lowest)
        return original(module, query, key, value, attention_mask, *args, **kwargs)

    model.set_attn_implementation("eager")
    file.eager_attention_forward = masked
    try:
        yield
    finally:
        file.eager_attention_forward = original


def outputs_and_gradients(model: PreTrainedModel, data: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What a model says of the tokens that are not padding, and the gradients of that."""
    model.zero_grad()
    output = model.double()(**data)[0]
    if output.shape[:2] == data["input_ids"].shape:
        output = output[data["attention_mask"].bool()]
    generator = torch.Generator().manual_seed(1)
    (output * torch.randn(output.shape, generator=generator, dtype=output.dtype)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return [output, *(gradient for _, gradient in sorted(gradients.items()) if gradient is not None)]


def assert_close(name: str, actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    tolerance = 2e-4 if name.startswith("Llama") else 1e-6  # Llama's norms are in float32, whatever the model
    assert len(actual) == len(expected) > 10
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padding", ["right", "left", "holes"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_dense_model_under_the_mask(name: str, padding: str) -> None:
    data, dense = batch(padding), dense_model(name)
    plain = dense(**data)[0]
    with reference_attention(dense):
        expected = outputs_and_gradients(dense, data)
    sparse = sparse_model(name)
    assert_close(name, outputs_and_gradients(sparse, data), expected)
    assert not torch.allclose(sparse(**data)[0].float(), plain, atol=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_no_mask_equals_a_mask_of_ones(name: str) -> None:
    sparse, data = sparse_model(name), batch(rows=1)
    torch.testing.assert_close(sparse(input_ids=data["input_ids"])[0], sparse(**data)[0])


@pytest.mark.parametrize("name", CASES)
def test_inputs_within_the_window_equal_the_dense_model(name: str) -> None:
    data = batch(length=12)
    expected = outputs_and_gradients(dense_model(name), data)
    assert_close(name, outputs_and_gradients(sparse_model(name), data), expected)


@pytest.mark.parametrize("name", CASES)
def test_every_self_attention_has_a_pattern_of_its_own(name: str) -> None:
    model = sparse_model(name)
    modules = [module for module in model.modules() if hasattr(module, "pattern")]
    assert [module.pattern for module in modules] == [reference_pattern(m, model.config) for m in modules]
    own = [module.pattern for module in modules if module.pattern is not None]
    assert (
        len(set(own))
        == len(own)
        == (4 if name in ("BartForConditionalGeneration", "BartModel") else len(own))
    )
    assert len(own) >= 2


@pytest.mark.parametrize(
    "change",
    [{"block_size": 5}, {"window": 5}, {"num_global": 2}, {"num_random": 2}, {"seed": 1}],
    ids=str,
)
def test_every_option_changes_the_result(change: dict[str, int]) -> None:
    data = batch()
    results = [sparse_model("BertForMaskedLM", {**PATTERN, **more})(**data).logits for more in ({}, change)]
    assert not torch.allclose(*results, atol=1e-2)


def decoding(model: Any, name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    data = batch("left", length=14)
    if name == "BartForConditionalGeneration":
        data = {**batch("right", length=33), "decoder_input_ids": data["input_ids"]}
        data["decoder_attention_mask"] = (data["decoder_input_ids"] != 1).long()
    model.generation_config.update(eos_token_id=None, forced_eos_token_id=None)
    options = {"max_new_tokens": 16, "do_sample": False, **options}
    return model.generate(**data, **options, output_logits=True, return_dict_in_generate=True)


GENERATORS = [
    "BertLMHeadModel",
    "RobertaForCausalLM",
    "GPT2LMHeadModel",
    "BartForConditionalGeneration",
    "BartForCausalLM",
    "LlamaForCausalLM",
]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", GENERATORS)
def test_cached_decoding_equals_uncached(name: str, cache: str) -> None:
    model = sparse_model(name)
    expected = decoding(model, name, use_cache=False)
    actual = decoding(model, name, cache_implementation=None if cache == "dynamic" else cache)
    assert actual.sequences.tolist() == expected.sequences.tolist()
    for ours, reference in zip(actual.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "GPT2LMHeadModel"])
def test_beams_are_the_same_with_and_without_a_cache(name: str) -> None:
    model = sparse_model(name)
    actual, expected = (
        decoding(model, name, num_beams=3, use_cache=use_cache) for use_cache in (True, False)
    )
    assert actual.sequences.tolist() == expected.sequences.tolist()


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertLMHeadModel"])
def test_a_step_of_several_tokens_continues_a_cache(name: str) -> None:
    model, tokens = sparse_model(name), batch(rows=2)["input_ids"]
    with torch.no_grad():
        expected = model(tokens).logits
        first = model(tokens[:, :21], use_cache=True)
        logits = [first.logits]
        for start, end in ((21, 22), (22, 38), (38, LENGTH)):
            step = model(tokens[:, start:end], **{CACHE_NAME: first[CACHE_NAME]}, use_cache=True)
            logits.append(step.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-3, atol=1e-3)


def test_dropout_is_applied_in_a_training_step_that_continues_a_cache() -> None:
    model, tokens = sparse_model("GPT2LMHeadModel", attn_pdrop=0.5), batch(rows=1)["input_ids"]
    results = []
    for is_training in (False, True):
        model.eval()
        cache = model(tokens[:, :21], use_cache=True)[CACHE_NAME]
        results.append(model.train(is_training)(tokens[:, 21:], **{CACHE_NAME: cache}).logits)
    assert not torch.allclose(*results, atol=1e-2)


@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "BertLMHeadModel", "GPT2LMHeadModel", "LlamaForCausalLM"]
)
@pytest.mark.parametrize("where", ["argument", "configuration"])
def test_requested_attention_weights_follow_the_pattern(name: str, where: str, tmp_path: Path) -> None:
    model, data = sparse_model(name), batch(rows=1)
    expected = model(**data).logits
    if where == "configuration":
        model.config.output_attentions = True
        model.save_pretrained(tmp_path)
        model = auto_class(name).from_pretrained(tmp_path)
        assert model.config.output_attentions
    output = model(**data, **({"output_attentions": True} if where == "argument" else {}))
    assert len(output.attentions) == 2
    modules = [module for module in model.modules() if hasattr(module, "pattern")]
    for module, weights in zip(modules, output.attentions, strict=True):
        assert ((weights[0] > 0) == module.pattern.to_dense(LENGTH)).all()
    torch.testing.assert_close(output.logits, expected, rtol=1e-3, atol=1e-4)


def test_attention_to_the_encoder_is_dense_and_has_weights() -> None:
    model, data = sparse_model("BartForConditionalGeneration"), batch()
    output = model(**data, output_attentions=True)
    for weights in output.cross_attentions:
        assert ((weights > 0) == data["attention_mask"][:, None, None].bool()).all()
    assert [weights.shape[1] for weights in output.encoder_attentions] == [4, 4]
    assert [weights.shape[1] for weights in output.decoder_attentions] == [2, 2]
    torch.testing.assert_close(output.logits, model(**data).logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["BertLMHeadModel", "GPT2LMHeadModel"])
def test_cross_attention_equals_that_of_the_dense_model(name: str) -> None:
    data = batch()
    data["encoder_hidden_states"] = torch.randn(
        3, LENGTH, 32, dtype=torch.float64
    )  # as long as the own sequence
    data["encoder_attention_mask"] = batch("holes")["attention_mask"]
    dense = dense_model(name, add_cross_attention=True)
    with reference_attention(dense):
        expected = outputs_and_gradients(dense, data)
    sparse = sparse_model(name, add_cross_attention=True)
    assert_close(name, outputs_and_gradients(sparse, data), expected)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("BertForMaskedLM", "attention_probs_dropout_prob"),
        ("GPT2LMHeadModel", "attn_pdrop"),
        ("BartForConditionalGeneration", "attention_dropout"),
        ("LlamaForCausalLM", "attention_dropout"),
    ],
)
def test_dropout_affects_only_training_and_checkpointing_is_bit_identical(name: str, field: str) -> None:
    data = batch()
    torch.testing.assert_close(sparse_model(name).train()(**data)[0], sparse_model(name)(**data)[0])
    model = sparse_model(name, **{field: 0.4}).double()
    expected = model(**data)[0]
    results = []
    model.train()
    for checkpointing in (False, True):
        if checkpointing:
            enable_activation_checkpointing(model)
        torch.manual_seed(0)
        results.append(outputs_and_gradients(model, {**data, "use_cache": False}))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    torch.manual_seed(0)
    assert not torch.allclose(model(**data, use_cache=False)[0], expected, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_half_precision_and_autocast(name: str, dtype: torch.dtype) -> None:
    model, data = sparse_model(name, initializer_range=0.1), batch()
    expected = model(**data).logits
    with torch.autocast("cpu", dtype):
        logits = model(**data).logits
    logits.float().sum().backward()
    assert all(
        parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None
    )
    shown = data["attention_mask"].bool()
    for actual in (logits, model.to(dtype)(**data).logits):
        torch.testing.assert_close(actual.float()[shown], expected[shown], rtol=0.1, atol=0.2)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_stays_sparse(name: str, tmp_path: Path) -> None:
    model, data = sparse_model(name), batch()
    model.save_pretrained(tmp_path)
    loaded = auto_class(name).from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert type(loaded).__name__ == f"Sparse{name}"
    assert type(loaded.config) is type(model.config)
    assert isinstance(loaded.config, SparseConfig)
    assert loaded.config.sparse_block_size == 4
    assert torch.equal(loaded(**data)[0], model(**data)[0])


def test_the_body_of_a_sparse_model_is_saved_sparse_too(tmp_path: Path) -> None:
    model, data = sparse_model("BertForMaskedLM"), batch()
    model.bert.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    expected = model(**data, output_hidden_states=True).hidden_states
    actual = loaded(**data, output_hidden_states=True)
    assert torch.equal(actual.last_hidden_state, expected[-1])
    assert len(actual.hidden_states) == len(expected) == 3


def test_a_base_model_records_its_hidden_states() -> None:
    assert len(sparse_model("BertModel")(**batch(), output_hidden_states=True).hidden_states) == 3


def run_in_another_process(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_another_process_loads_a_sparse_model_as_sparse_or_fails(tmp_path: Path) -> None:
    model, data = sparse_model("BertForMaskedLM"), batch()
    model.save_pretrained(tmp_path)
    torch.save(data, tmp_path / "data.pt")
    checkpoint = str(tmp_path)
    with_vaswani = f"""
import sys, torch, vaswani
torch.set_num_threads({torch.get_num_threads()})
from transformers import AutoModelForMaskedLM
assert not [name for name in sys.modules if ".modeling_bert" in name or ".modeling_llama" in name]
data = torch.load({str(tmp_path / "data.pt")!r}, weights_only=True)
model = AutoModelForMaskedLM.from_pretrained({checkpoint!r})
torch.save(model(**data).logits.detach(), {str(tmp_path / "logits.pt")!r})
"""
    assert run_in_another_process(with_vaswani).returncode == 0
    assert torch.equal(torch.load(tmp_path / "logits.pt", weights_only=True), model(**data).logits)
    without = f"""
from transformers import AutoModelForMaskedLM, BertForMaskedLM
for auto in (AutoModelForMaskedLM, BertForMaskedLM):
    try:
        auto.from_pretrained({checkpoint!r})
    except ValueError as error:
        print(error)
    else:
        raise SystemExit("it was opened")
"""
    process = run_in_another_process(without)
    assert process.returncode == 0, process.stderr
    assert "model type `vaswani_sparse_bert`" in process.stdout
    assert 'attn_implementation="vaswani_sparse"` is not supported' in process.stdout


def test_a_dense_class_with_a_sparse_checkpoint_raises_an_error(tmp_path: Path) -> None:
    sparse_model("BertForMaskedLM").save_pretrained(tmp_path)
    model = BertForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"BertSelfAttention has no sparse pattern.*Auto classes"):
        model(**batch())


def test_copies_and_pickles_are_sparse() -> None:
    model, data = sparse_model("GPT2LMHeadModel"), batch()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model)
        assert torch.equal(other(**data).logits, model(**data).logits)


def test_a_tokenizer_saved_beside_it_is_found(tmp_path: Path) -> None:
    sparse_model("BertForMaskedLM").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word"]))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(tokenizer, transformers.BertTokenizer)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertForMaskedLM"])
def test_the_trainer_smooths_labels_as_for_the_dense_model(name: str, tmp_path: Path) -> None:
    data = batch(length=12)
    data["labels"] = data["input_ids"]
    arguments = TrainingArguments(output_dir=str(tmp_path), label_smoothing_factor=0.2, use_cpu=True)
    losses = [
        Trainer(model, arguments).compute_loss(model, dict(data))
        for model in (dense_model(name), sparse_model(name))
    ]
    torch.testing.assert_close(*losses)


def test_sparsifying_again_gives_the_new_pattern() -> None:
    data, again = batch(), {**PATTERN, "num_random": 2, "seed": 3}
    model = sparsify(sparse_model("BertForMaskedLM"), **again)
    expected = sparse_model("BertForMaskedLM", again)
    assert type(model) is type(expected)
    assert model.config.sparse_seed == 3
    assert torch.equal(model(**data).logits, expected(**data).logits)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BartForConditionalGeneration"])
def test_changing_the_pattern_only_in_the_configuration_raises_an_error(name: str, tmp_path: Path) -> None:
    model, data = sparse_model(name), batch()
    model.config.sparse_window_blocks = 5
    message = r"config\.sparse_window_blocks was changed to 5, and the model uses 3; call vaswani\.sparsify"
    with pytest.raises(UserError, match=message):
        model(**data)
    with pytest.raises(UserError, match=message):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    sparsify(model, **{**PATTERN, "window": 5}).save_pretrained(tmp_path)
    loaded = auto_class(name).from_pretrained(tmp_path)
    assert torch.equal(loaded(**data).logits, model(**data).logits)


def test_other_models_of_the_same_configuration_stay_dense() -> None:
    data, dense = batch(), dense_model("BertForMaskedLM")
    other = BertForMaskedLM(dense.config).eval()
    expected = other(**data).logits
    sparsify(dense, **PATTERN)
    assert type(other.config) is transformers.BertConfig
    assert torch.equal(other(**data).logits, expected)


def test_a_model_on_the_meta_device_becomes_sparse() -> None:
    with torch.device("meta"):
        model = dense_model("LlamaForCausalLM")
    sparsify(model, **PATTERN).to_empty(device="cpu")
    assert model.model.layers[1].self_attn.pattern.layer == 1


@pytest.mark.parametrize("name", ["BertModel", "GPT2Model", "BartModel", "LlamaModel"])
def test_a_checkpoint_without_sparse_layers_is_inspected(name: str, tmp_path: Path) -> None:
    """As those of version 0.1.0, and configurations that are written by hand."""
    model, data = sparse_model(name), batch()
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    layers = settings.pop("sparse_layers")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert loaded.config.sparse_layers == layers
    assert torch.equal(loaded(**data)[0], model(**data)[0])


def test_a_sparse_model_is_made_from_its_configuration() -> None:
    model, data = sparse_model("GPT2LMHeadModel"), batch()
    other = AutoModelForCausalLM.from_config(model.config).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(**data).logits, model(**data).logits)
    with pytest.raises(UserError, match=r"SparseGPT2LMHeadModel takes a SparseGPT2Config; got GPT2Config"):
        type(model)(transformers.GPT2Config(n_layer=1))


def test_a_bidirectional_llama_has_a_bidirectional_pattern() -> None:
    model, data = sparse_model("LlamaModel", is_causal=False), batch()
    assert not model.layers[0].self_attn.pattern.causal
    dense = dense_model("LlamaModel", is_causal=False)
    short = batch(length=8)
    torch.testing.assert_close(model(**short)[0], dense(**short)[0], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(model(**data)[0], dense(**data)[0], atol=1e-2)


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertForMaskedLM", "LlamaForCausalLM"])
def test_a_training_step_compiles_whole(name: str) -> None:
    model, data = sparse_model(name), batch()
    expected = model(**data, use_cache=False).logits
    actual = torch.compile(model, fullgraph=True, backend=GRAPHS_ALONE)(**data, use_cache=False).logits
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertForMaskedLM", "LlamaForCausalLM"])
def test_an_exported_program_takes_any_length(name: str) -> None:
    model, length = sparse_model(name), torch.export.Dim("length", min=30, max=100)
    shapes = {"input_ids": {1: length}, "attention_mask": {1: length}}
    options = {"use_cache": False} if name.startswith("Llama") else {}
    program = torch.export.export(
        model, (), {**batch(), **options}, dynamic_shapes={**shapes, **dict.fromkeys(options)}
    )
    for other in (LENGTH, 31, 88):
        data = batch(length=other)
        actual, expected = program.module()(**data, **options).logits, model(**data, **options).logits
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_step_with_a_cache_of_fixed_size_compiles_whole() -> None:
    model, tokens = sparse_model("LlamaForCausalLM"), batch(rows=2)["input_ids"]
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    with torch.no_grad():
        expected = model(tokens).logits
        model(tokens[:, :30], **{CACHE_NAME: cache})
        step = torch.compile(model, fullgraph=True)
        for position in (30, 31, 32):
            logits = step(tokens[:, position : position + 1], **{CACHE_NAME: cache}).logits
            torch.testing.assert_close(logits[:, 0], expected[:, position], rtol=1e-3, atol=1e-3)


class OwnBert(BertForMaskedLM):
    pass


class OwnBertConfig(transformers.BertConfig):
    pass


def unsupported(kind: str) -> nn.Module:
    config = dense_model("BertForMaskedLM").config
    return {
        "own class": lambda: OwnBert(config),
        "own configuration": lambda: BertForMaskedLM(OwnBertConfig(**SIZES["Bert"], vocab_size=9)),
        "module": lambda: nn.Linear(2, 2),
        "relative positions": lambda: dense_model("BertForMaskedLM", position_embedding_type="relative_key"),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("own class", r"classes that transformers exports; got .*OwnBert"),
        ("own configuration", "BertForMaskedLM has a OwnBertConfig"),
        ("module", r"classes that transformers exports; got torch.*Linear"),
        ("relative positions", "position_embedding_type='relative_key'"),
    ],
)
def test_other_models_are_refused(kind: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sparsify(unsupported(kind))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 2}, "window_blocks=2 must be odd"),
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"num_global": -1}, "global_blocks=-1 must be at least 0"),
        ({"num_random": -1}, "random_blocks=-1 must be at least 0"),
        ({"seed": 2**64}, "must fit into 64 bits"),
        ({"block_size": 4.5}, "sparse_block_size"),
    ],
)
def test_impossible_patterns_leave_the_model_as_it_was(options: dict[str, int], message: str) -> None:
    model, data = dense_model("BertForMaskedLM"), batch()
    expected = model(**data).logits
    with pytest.raises(Exception, match=message):
        sparsify(model, **options)
    assert type(model) is BertForMaskedLM
    assert torch.equal(model(**data).logits, expected)


def test_a_causal_model_can_have_an_even_window() -> None:
    assert sparsify(dense_model("GPT2LMHeadModel"), window=2).config.sparse_window_blocks == 2


def with_mask(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**batch(rows=1), "attention_mask": mask}


BOTH_WAYS, CAUSAL = "BertForMaskedLM", "GPT2LMHeadModel"
FULL = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
PACKED = {
    "input_ids": torch.full((1, LENGTH), 5),
    "use_cache": False,
    "position_ids": torch.cat([torch.arange(20), torch.arange(LENGTH - 20)])[None],
}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (BOTH_WAYS, with_mask(FULL), r"padding mask \[batch, length\]; got torch.bool \[1, 1, 45, 45\]"),
        (BOTH_WAYS, with_mask(FULL.float()), r"got torch.float32 \[1, 1, 45, 45\]"),
        (BOTH_WAYS, with_mask(FULL[:, :, :1].long()), r"got torch.int64 \[1, 1, 1, 45\]"),
        (BOTH_WAYS, with_mask(FULL[0]), r"got torch.bool \[1, 45, 45\]"),
        (CAUSAL, with_mask(FULL), r"got torch.bool \[1, 1, 45, 45\]"),
        (CAUSAL, PACKED, "packed sequences"),
        ("LlamaForCausalLM", PACKED, "packed sequences"),
        (BOTH_WAYS, {**batch(), "position_bias": torch.zeros(1)}, "does not support position_bias"),
        (BOTH_WAYS, {**batch(), "head_mask": torch.ones(4)}, "does not support head_mask"),
        ("LlamaForCausalLM", {**batch(), "softcap": 30.0}, "does not support softcap"),
        ("LlamaForCausalLM", {**batch(), "s_aux": torch.zeros(4)}, "does not support s_aux"),
        ("LlamaForCausalLM", {**batch(), "sliding_window": 8}, "does not support sliding_window"),
        (
            "LlamaForCausalLM",
            {**batch(), "cu_seq_lens_q": torch.tensor([0])},
            "does not support cu_seq_lens_q",
        ),
        ("LlamaForCausalLM", {**batch(), "is_causal": False}, "is_causal=False, but the pattern"),
        (BOTH_WAYS, with_mask(torch.ones(1, LENGTH + 4)), "45 queries, 45 keys and a mask of 49"),
        (
            CAUSAL,
            {**with_mask(torch.ones(1, LENGTH + 4)), "use_cache": False},
            "for 49 tokens and there are 45",
        ),
        (
            CAUSAL,
            {**with_mask(torch.ones(1, LENGTH - 4)), "use_cache": False},
            "for 41 tokens and there are 45",
        ),
    ],
)
def test_inputs_unsupported_by_a_pattern_raise_an_error(name: str, data: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sparse_model(name)(**data)


@pytest.mark.parametrize("how", ["or", "and", "blocks"])
def test_masks_that_are_more_than_causal_are_refused(how: str) -> None:
    config, embeddings = sparse_model(CAUSAL).config, torch.zeros(1, LENGTH, 32)
    options: dict[str, Any] = {
        "or": {"or_mask_function": lambda batch, head, q, kv: q == kv},
        "and": {"and_mask_function": lambda batch, head, q, kv: q == kv},
        "blocks": {"block_sequence_ids": torch.zeros(1, LENGTH, dtype=torch.int64)},
    }[how]
    with pytest.raises(UserError, match=r"the model asks for more \(.*_masks?.*\)"):
        create_causal_mask(config, embeddings, None, None, **options)


def test_a_mask_with_a_sliding_window_is_refused() -> None:
    config, embeddings = sparse_model(CAUSAL).config, torch.zeros(1, LENGTH, 32)
    config.sliding_window = 8
    with pytest.raises(UserError, match=r"has no sliding windows or chunks; the model asks for 8 tokens"):
        create_sliding_window_causal_mask(config, embeddings, None, None)


def test_a_cache_that_drops_keys_is_refused() -> None:
    model = sparse_model("LlamaForCausalLM")
    cache = transformers.DynamicCache(
        config=transformers.MistralConfig(num_hidden_layers=2, sliding_window=8)
    )
    data = batch(rows=1)
    model(data["input_ids"][:, :20], **{CACHE_NAME: cache}, use_cache=True)
    with pytest.raises(UserError, match=r"the cache has dropped \d+ keys"):
        model(data["input_ids"][:, 20:], **{CACHE_NAME: cache}, use_cache=True)


@pytest.mark.parametrize(("name", "field"), [("BertForMaskedLM", "is_decoder"), ("LlamaModel", "is_causal")])
def test_a_direction_that_contradicts_the_pattern_raises_an_error(name: str, field: str) -> None:
    model = sparse_model(name)
    setattr(model.config, field, field == "is_decoder")
    with pytest.raises(UserError, match=r"its pattern has causal=False|is_causal=False, but the pattern"):
        model(**batch())


def test_another_attention_implementation_is_refused(tmp_path: Path) -> None:
    model = sparse_model("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    message = "attn_implementation='(sdpa|eager)' would make a sparse model dense"
    with pytest.raises(UserError, match=message):
        model.set_attn_implementation("sdpa")
    with pytest.raises(UserError, match=message):
        model.bert.set_attn_implementation("eager")
    with pytest.raises(UserError, match=message):
        AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    dense = dense_model("BertForMaskedLM")
    dense.set_attn_implementation("vaswani_sparse")
    with pytest.raises(UserError, match=r"no sparse pattern.*vaswani.sparsify\(model\)"):
        dense(**batch())


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "bart", "llama", "electra", "phi"])
def test_sparse_families_are_registered_with_the_same_auto_classes(family: str, tmp_path: Path) -> None:
    names = transformers.models.auto.modeling_auto
    dense_config = transformers.AutoConfig.for_model(family)
    sparse_config = transformers.AutoConfig.for_model(f"vaswani_sparse_{family}")
    assert json.loads(sparse_config.to_json_string())["model_type"] == f"vaswani_sparse_{family}"
    known = 0
    for name in names.__all__:
        mapping = getattr(getattr(names, name), "_model_mapping", None)
        if mapping is not None and name.startswith("AutoModel") and type(dense_config) in mapping:
            dense, sparse = mapping[type(dense_config)], mapping[type(sparse_config)]
            assert issubclass(sparse, dense)
            assert sparse.can_generate() == dense.can_generate()
            known += 1
    assert known >= 4
