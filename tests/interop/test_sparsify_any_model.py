"""`sparsify` accepts a model that uses the attention interface, and names unsupported features."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from sparse_reference import under_pattern
from vaswani import sparsify
from vaswani.errors import UserError
from vaswani.interop.attention_probe import find_attention
from vaswani.interop.sparsify import SparseConfig
from vaswani.model.sparse_pattern import SparsePattern

LENGTH, HEADS, WIDTH, LAYERS, VOCABULARY = 45, 4, 32, 2, 61
NARROW = {"block_size": 4, "window": 3, "num_global": 1, "num_random": 1}
WIDE = {"block_size": 16, "window": 5, "num_global": 0, "num_random": 0}  # three blocks that see each other

BERT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
LLAMA = {**BERT, "num_key_value_heads": 2}
BART = {
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "init_std": 0.3,
    "scale_embedding": False,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "data2vec-text": BERT,
    "ernie": BERT,
    "roberta-prelayernorm": BERT,
    "electra": {**BERT, "embedding_size": WIDTH},
    "albert": {**BERT, "embedding_size": 16},
    "distilbert": {
        "dim": WIDTH,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "hidden_dim": 48,
        "initializer_range": 0.3,
    },
}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "initializer_range": 0.3},
    "gpt_neox": BERT,
    "opt": {
        **BERT,
        "ffn_dim": 48,
        "word_embed_proj_dim": WIDTH,
        "max_position_embeddings": 128,
        "init_std": 0.3,
    },
    "biogpt": BERT,
    "llama": LLAMA,
    "mistral": {**LLAMA, "sliding_window": None},
    "mixtral": {**LLAMA, "num_local_experts": 3},
    "qwen2": LLAMA,
    "qwen3": {**LLAMA, "head_dim": 8},
    "gemma": {**LLAMA, "head_dim": 8},
    "olmo": LLAMA,
    "phi": LLAMA,
    "granite": LLAMA,
    "stablelm": LLAMA,
    "deepseek_v3": {
        **BERT,
        "num_key_value_heads": HEADS,
        "first_k_dense_replace": LAYERS,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 12,  # wider than keys
    },
    "jetmoe": {  # views what the attention function returns
        **BERT,
        "num_key_value_heads": HEADS // 2,
        "kv_channels": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
}
BOTH: dict[str, dict[str, Any]] = dict.fromkeys(
    ("bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot", "plbart"), BART
)
SIZES = ENCODERS | DECODERS | BOTH


def dense_model(model_type: str, auto: Any = AutoModel, **fields: Any) -> PreTrainedModel:
    """A tiny model without dropout in evaluation mode, whose biases are random too."""
    known = AutoConfig.for_model(model_type).to_dict()
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id")
    options = {
        **{name: 0.0 for name in known if "dropout" in name and isinstance(known[name], float)},
        **{name: number for number, name in enumerate(names) if name in known},
        "vocab_size": VOCABULARY,
        **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
        **SIZES.get(model_type, {}),
        **fields,
    }
    torch.manual_seed(0)
    model = auto.from_config(AutoConfig.for_model(model_type, **options), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.set_experts_implementation("eager")  # the other does not know float64
    return model.eval()


def batch(model_type: str, padding: str = "right", length: int = LENGTH) -> dict[str, torch.Tensor]:
    input_ids = torch.randint(5, VOCABULARY, (2, length))
    mask = torch.ones_like(input_ids)
    mask[1, length - 11 :] = 0
    if padding == "left":
        mask = mask.flip(1)
    data = {"input_ids": input_ids, "attention_mask": mask}
    if model_type in BOTH:
        data |= {"decoder_input_ids": input_ids.flip(1), "decoder_attention_mask": mask}
    return data


def outputs_and_gradients(model: PreTrainedModel, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The states of the tokens that are not padding, and the gradients of a number made of them."""
    model.zero_grad()
    output = model(**data)[0][data["attention_mask"].bool()]
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=output.dtype)
    (output * weights).sum().backward()
    gradients = {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return {"output": output.detach(), **gradients}


def assert_close(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float
) -> None:
    """Compare relative to the largest number of a kind, as some gradients are zero but for rounding."""
    assert actual.keys() == expected.keys()
    assert len(expected) > 10
    largest = max(float(each.abs().max()) for name, each in expected.items() if name != "output")
    for name in expected:
        scale = float(expected[name].abs().max()) if name == "output" else largest
        assert float((actual[name] - expected[name]).abs().max()) <= tolerance * scale, name


def tolerance_of(model: PreTrainedModel, dtype: torch.dtype) -> float:
    """What float32 allows, also in models that compute their norms in float32 whatever their dtype."""
    in_float32 = any("RMSNorm" in type(module).__name__ for module in model.modules())
    # Or their norms of other names, rotations and softmax.
    in_float32 |= model.config.model_type in ("olmo", "opt", "phi", "stablelm", "gpt_neox")
    return 1e-10 if dtype == torch.float64 and not in_float32 else 1e-5


def is_causal(model_type: str, name: str) -> bool:
    return model_type in DECODERS or (model_type in BOTH and "decoder" in name)


@contextmanager
def attention_under(pattern_of: Callable[..., SparsePattern], model: PreTrainedModel) -> Iterator[None]:
    """Eager attention that sees what the pattern of each layer shows, known here by the names of modules.

    Its mask stays finite where a model computes in float64 and its softmax in float32.
    """
    names = {module: name for name, module in model.named_modules()}
    file: Any = sys.modules[type(model).__module__]
    original: Callable = file.eager_attention_forward

    def masked(module: nn.Module, query, key, value, attention_mask, *args, **kwargs):
        name = names[module]
        if "encoder_attn" not in name:
            layer = int(next(iter(part for part in name.split(".") if part.isdigit())))
            layer = 0 if model.config.model_type == "albert" else layer  # all layers share one
            pattern = pattern_of(layer, is_causal(model.config.model_type, name))
            lowest = torch.finfo(torch.float32).min
            attention_mask = under_pattern(pattern, query, key, attention_mask, lowest)
        return original(module, query, key, value, attention_mask, *args, **kwargs)

    file.eager_attention_forward = masked
    try:
        yield
    finally:
        file.eager_attention_forward = original


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", SIZES)
def test_a_pattern_that_covers_all_is_the_dense_model(
    model_type: str, padding: str, dtype: torch.dtype
) -> None:
    data, dense = batch(model_type, padding), dense_model(model_type).to(dtype)
    with attention_under(lambda layer, causal: SparsePattern(HEADS, LENGTH, causal=causal), dense):
        expected = outputs_and_gradients(dense, data)
    actual = outputs_and_gradients(sparsify(dense_model(model_type).to(dtype), **WIDE), data)
    assert_close(actual, expected, tolerance_of(dense, dtype))


def pattern_of(layer: int, causal: bool) -> SparsePattern:
    return SparsePattern(HEADS, 4, 3, 1, 1, seed=0, layer=layer, causal=causal)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", SIZES)
def test_a_narrow_pattern_is_the_dense_model_under_its_mask(model_type: str, padding: str) -> None:
    data, dense = batch(model_type, padding), dense_model(model_type).double()
    plain = outputs_and_gradients(dense, data)["output"]
    with attention_under(pattern_of, dense):
        expected = outputs_and_gradients(dense, data)
    sparse = sparsify(dense_model(model_type).double(), **NARROW)
    assert_close(outputs_and_gradients(sparse, data), expected, tolerance_of(dense, torch.float64))
    assert not torch.allclose(plain, expected["output"], atol=1e-3)


@pytest.mark.parametrize("model_type", SIZES)
def test_an_output_depends_only_on_visible_tokens(model_type: str) -> None:
    pattern = {**NARROW, "num_global": 0, "num_random": 0}
    stacks = {False: "get_encoder"} if model_type in BOTH else {model_type in DECODERS: "base_model"}
    for causal, stack in stacks.items():
        model = sparsify(dense_model(model_type), **pattern)
        body = model.get_encoder() if stack == "get_encoder" else model
        states = body.get_input_embeddings()(torch.randint(5, VOCABULARY, (1, LENGTH))).detach()
        states.requires_grad_()
        output = body(inputs_embeds=states, attention_mask=torch.ones(1, LENGTH))[0][0, 22]
        (output * torch.randn(WIDTH)).sum().backward()
        moved = states.grad[0].abs().amax(-1) > 0
        once = SparsePattern(1, 4, 3, 0, 0, causal=causal).to_dense(LENGTH)[0].float()
        assert (moved == ((once @ once)[22] > 0)).all()
        assert 0 < moved.sum() < LENGTH


@pytest.mark.parametrize("model_type", SIZES)
def test_attention_weights_follow_the_pattern(model_type: str) -> None:
    model, data = sparsify(dense_model(model_type), **NARROW), batch(model_type)
    data = {name: given[:1] for name, given in data.items()}
    output = model(**data, output_attentions=True)
    found = {False: output.encoder_attentions, True: output.decoder_attentions} if model_type in BOTH else {}
    found = found or {model_type in DECODERS: output.attentions}
    for causal, layers in found.items():
        assert len(layers) == LAYERS
        for layer, weights in enumerate(layers):
            layer = 0 if model_type == "albert" else layer
            assert ((weights[0] > 0) == pattern_of(layer, causal).to_dense(LENGTH)).all()
    if model_type in BOTH:
        assert all((weights > 0).all() for weights in output.cross_attentions)


@pytest.mark.parametrize("model_type", SIZES)
def test_a_saved_model_stays_sparse(model_type: str, tmp_path: Path) -> None:
    model, data = sparsify(dense_model(model_type), **NARROW), batch(model_type)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert isinstance(loaded.config, SparseConfig)
    assert loaded.config.model_type == f"vaswani_sparse_{model_type}"
    assert torch.equal(loaded(**data)[0], model(**data)[0])


@pytest.mark.parametrize("save_original_format", [True, False])
@pytest.mark.parametrize("made", ["in memory", "loaded"])
@pytest.mark.parametrize("model_type", ["mixtral", "gpt_neox"])
def test_weights_that_the_library_converts_are_saved_and_loaded(
    model_type: str, made: str, save_original_format: bool, tmp_path: Path
) -> None:
    auto = transformers.AutoModelForCausalLM
    model, data = dense_model(model_type, auto), batch(model_type)
    model.save_pretrained(tmp_path / "dense")
    in_checkpoint, in_memory = names_of_weights(tmp_path / "dense"), model.state_dict().keys()
    assert in_checkpoint != in_memory or model_type == "gpt_neox"  # transformers 5.12 has one name for both
    if made == "loaded":
        model = auto.from_pretrained(tmp_path / "dense")
    expected = sparsify(model, **NARROW)(**data).logits
    for folder in (tmp_path / "once", tmp_path / "twice"):
        model.save_pretrained(folder, save_original_format=save_original_format)
        assert names_of_weights(folder) == (in_checkpoint if save_original_format else in_memory)
        model, report = auto.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        torch.testing.assert_close(model(**data).logits, expected, rtol=1e-4, atol=1e-4)


def names_of_weights(folder: Path) -> set[str]:
    return set(load_file(folder / "model.safetensors"))


@pytest.mark.slow
def test_experts_are_computed_as_in_the_dense_model(tmp_path: Path) -> None:
    dense = type(dense_model("mixtral"))(AutoConfig.for_model("mixtral", **LLAMA, num_local_experts=2))
    sparse = sparsify(dense, **NARROW)
    implementation = sparse.config._experts_implementation
    assert implementation != "eager"
    sparse.save_pretrained(tmp_path)
    # The library looks once for each class, and may have done so for the dense one alone.
    process = run_in_another_process(f"""
import vaswani
from transformers import AutoModel
loaded = AutoModel.from_pretrained({str(tmp_path)!r})
assert loaded.config._experts_implementation == {implementation!r}, loaded.config._experts_implementation
""")
    assert process.returncode == 0, process.stderr


def run_in_another_process(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_process_that_loads_alone_converts_weights_too(tmp_path: Path) -> None:
    model = sparsify(dense_model("mixtral"), **NARROW)
    model.save_pretrained(tmp_path)
    process = run_in_another_process(f"""
import vaswani
from transformers import AutoModel
_, report = AutoModel.from_pretrained({str(tmp_path)!r}, output_loading_info=True)
assert not report["missing_keys"] and not report["unexpected_keys"], report
""")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("model_type", DECODERS | BOTH)
def test_cached_decoding_equals_uncached(model_type: str) -> None:
    auto = transformers.AutoModelForCausalLM
    if model_type in BOTH:
        auto = transformers.AutoModelForSeq2SeqLM
    model = sparsify(dense_model(model_type, auto), **NARROW)
    model.generation_config.update(eos_token_id=None, forced_eos_token_id=None, pad_token_id=0)
    data = batch(model_type, "right" if model_type in BOTH else "left", length=21)
    data = {name: given for name, given in data.items() if not name.startswith("decoder")}
    options = {
        "max_new_tokens": 14,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    actual, expected = (model.generate(**data, **options, use_cache=cached) for cached in (True, False))
    assert actual.sequences.tolist() == expected.sequences.tolist()
    for ours, reference in zip(actual.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-3)


T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS}
FULL = {"layer_types": ["full_attention"] * LAYERS}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "position biases": ("t5", T5, r"passes position_bias|no layer calls"),
    "a sliding window": ("mistral", {**LLAMA, "sliding_window": 8}, r"sliding windows.*for 8 tokens"),
    "a sliding window in some layers": ("modernbert", BERT, r"ModernBertAttention passes sliding_window="),
    "capped scores": ("gemma2", {**LLAMA, "head_dim": 8}, r"Gemma2Attention passes softcap=50\.0"),
    "attention sinks": ("gpt_oss", {**LLAMA, "head_dim": 8, "num_local_experts": 2, **FULL}, "passes s_aux"),
    "a mask of its own": (
        "layoutlm",
        BERT,
        r"LayoutLMModel: LayoutLMSelfAttention gets .* made by the model itself\.$",
    ),
    "no attention": ("mamba", {"hidden_size": WIDTH, "num_hidden_layers": 2}, "no layer calls"),
    "an attention of its own": ("bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": 4}, "no layer calls"),
    "an encoder with an attention of its own": (
        "pegasus_x",
        BART,
        r"PegasusXModel: the attention of its encoder is its own: no layer calls",
    ),
    "pixels": ("vit", BERT, "its input is pixel_values, not input_ids"),
    "several models": ("clip", {}, "CLIPModel is made of several, with CLIPConfig, CLIPTextConfig"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_models_raise_an_error_and_stay_unchanged(what: str) -> None:
    model_type, sizes, message = REFUSED[what]
    with torch.device("meta" if what == "several models" else "cpu"):
        model = dense_model(model_type, **sizes)
    before, implementation = type(model), model.config._attn_implementation
    with pytest.raises(UserError, match=message):
        sparsify(model)
    assert type(model) is before
    assert model.config._attn_implementation == implementation
    assert not any(hasattr(module, "pattern") for module in model.modules())


@pytest.mark.parametrize("what", ["capped", "scaled", "in the layer"])
def test_an_undeclared_deviation_from_attention_is_detected(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = transformers.models.bert.modeling_bert
    original, model = file.eager_attention_forward, dense_model("bert")
    if what == "in the layer":  # which looks at the name of the implementation
        forward = file.BertSelfAttention.forward
        monkeypatch.setattr(
            file.BertSelfAttention,
            "forward",
            lambda self, states, *args, **kwargs: forward(
                self, states * (1 + (self.config._attn_implementation == "eager")), *args, **kwargs
            ),
        )
    else:
        change = {
            "capped": lambda query, *states: (5 * torch.tanh(query / 5), *states),
            "scaled": lambda query, *states: (query * 1.01, *states),
        }[what]
        monkeypatch.setattr(
            file,
            "eager_attention_forward",
            lambda module, query, key, value, *args, **kwargs: original(
                module, *change(query, key, value), *args, **kwargs
            ),
        )
    with pytest.raises(UserError, match=r"is more than softmax|differs from one with eager attention"):
        sparsify(model)


def test_finding_attention_layers_changes_nothing() -> None:
    model = dense_model("bert", hidden_dropout_prob=0.5).train()
    model.embeddings.eval()
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    calls = find_attention(model)
    assert [(call.heads, call.causal) for call in calls.values()] == [(HEADS, False)] * LAYERS
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("model_type", ["bert", "llama", "marian"])
def test_a_half_precision_model_can_be_sparsified(model_type: str) -> None:
    data, expected = batch(model_type), sparsify(dense_model(model_type), **NARROW)
    actual = sparsify(dense_model(model_type).bfloat16(), **NARROW)
    assert actual.config.sparse_layers == expected.config.sparse_layers
    shown = data["attention_mask"].bool()
    difference = actual(**data)[0].float()[shown] - expected(**data)[0][shown]
    assert difference.norm() < 0.1 * expected(**data)[0][shown].norm()


def test_layers_missing_in_the_configuration_are_detected() -> None:
    model, data = sparsify(dense_model("marian"), **NARROW), batch("marian")
    model.config.sparse_layers = None
    other = AutoModel.from_config(model.config).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(**data)[0], model(**data)[0])
    assert other.config.sparse_layers["encoder.layers.*.self_attn"] == {"heads": HEADS, "causal": False}
