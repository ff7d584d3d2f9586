"""Differences between supported versions of transformers; newer versions are refused."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tiny import tiny_model
from vaswani import VaswaniDecoderConfig
from vaswani.model.compatibility import CACHE_NAME, TOO_NEW, check_version, takes_cache
from vaswani.model.modeling_vaswani_decoder import (
    VaswaniDecoderForSequenceClassification,
    VaswaniDecoderForTokenClassification,
    VaswaniDecoderModel,
    VaswaniForCausalLM,
)

SOURCE = Path(__file__).parents[2] / "src/vaswani"
DECODERS = (
    VaswaniDecoderModel,
    VaswaniForCausalLM,
    VaswaniDecoderForSequenceClassification,
    VaswaniDecoderForTokenClassification,
)


def test_the_installed_version_is_supported():
    check_version(transformers.__version__)


@pytest.mark.parametrize("version", ["5.25.0", "5.25.0.dev0", "5.30.1", "6.0.0"])
def test_newer_versions_are_refused_with_the_remedy(version):
    message = f"before 5.25, and {version} is installed; pip install 'transformers<5.25'"
    with pytest.raises(ImportError, match=re.escape(message)):
        check_version(version)


def test_the_requirement_of_the_package_matches_the_supported_versions():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"transformers>=5.12,<{".".join(map(str, TOO_NEW))}"' in project


def test_the_cache_name_is_that_of_generate():
    parameters = inspect.signature(transformers.GenerationMixin.prepare_inputs_for_generation).parameters
    assert [name for name in ("cache", "past_key_values") if name in parameters] == [CACHE_NAME]


@pytest.fixture(params=["the model", "its base", "its decoder", *DECODERS])
def continued(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Any], str]:
    """A model, its inputs but the tokens, and the name of those."""
    torch.manual_seed(0)
    if isinstance(request.param, type):
        shape = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}
        config = VaswaniDecoderConfig(vocab_size=50, d_model=16, pad_token_id=0, **shape)
        return request.param(config).eval(), {}, "input_ids"
    model = tiny_model()
    states = torch.rand(2, 5, model.config.d_model)
    if request.param == "its decoder":
        return model.get_decoder(), {"encoder_hidden_states": states}, "input_ids"
    inputs = {"encoder_outputs": (states,)}
    return (model if request.param == "the model" else model.model), inputs, "decoder_input_ids"


def test_models_take_their_cache_by_either_name(continued):
    model, inputs, ids = continued
    stack = model if hasattr(model, "new_cache") else model.get_decoder()
    tokens = torch.arange(3, 15).view(2, 6)

    def after(past: int, name: str) -> torch.Tensor:
        cache = stack.new_cache()
        model(**inputs, **{ids: tokens[:, :past]}, **{name: cache})
        assert cache.get_seq_length() == past
        return model(**inputs, **{ids: tokens[:, past:]}, **{name: cache})[0]

    torch.testing.assert_close(after(4, "cache"), after(4, "past_key_values"), rtol=0, atol=0)
    whole = model(**inputs, **{ids: tokens})[0]
    if whole.ndim == 3:
        whole = whole[:, 4:]
    torch.testing.assert_close(after(4, "cache"), whole, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="two names of one argument"):
        model(**inputs, **{ids: tokens}, cache=stack.new_cache(), past_key_values=stack.new_cache())


def test_the_signature_has_the_name_of_this_version(continued):
    model, _, _ = continued
    parameters = inspect.signature(model.forward).parameters
    assert [name for name in ("cache", "past_key_values") if name in parameters] == [CACHE_NAME]
    assert f"{CACHE_NAME} (" in model.forward.__doc__


def test_a_none_cache_under_one_name_keeps_the_other():
    @takes_cache
    def function(past_key_values=None):
        return past_key_values

    assert function(cache=None, past_key_values="states") == function(past_key_values="states", cache=None)
    assert function(cache="states", past_key_values=None) == function("states", cache=None) == "states"
    assert function() is None


def test_outputs_are_written_and_read_by_the_name_of_this_version():
    """A field has one name only in versions before 5.24, and the old name warns in later ones."""
    wrong = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_read = isinstance(node, ast.Attribute) and node.attr == "past_key_values"
            is_written = isinstance(node, ast.Call) and "Output" in ast.unparse(node.func)
            if is_read or (is_written and "past_key_values" in [keyword.arg for keyword in node.keywords]):
                wrong.append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert wrong == []
