"""Extreme values of every numeric field give a one-line error or a working model."""

import dataclasses
import json
import math
import re
import typing
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from limits import run_limited
from vaswani.errors import UserError, one_line
from vaswani.hub.run_metadata import meta_model, read_config
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)
from vaswani.model.sparse_pattern import SparsePattern

CONFIGS = (VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig)
VALUES = (math.nan, math.inf, -math.inf, -1, 0, 1e30, 10**12, "1", [1], {}, True)
NOT_FINITE = VALUES[:3]
UNUSED = {"chunk_size_feed_forward"}  # the library's, without effect on our models


def numeric_fields(config_class: type[VaswaniFamilyConfig]) -> list[str]:
    kinds = {
        field.name: {field.type, *typing.get_args(field.type)} for field in dataclasses.fields(config_class)
    }
    return [name for name, types in kinds.items() if types & {int, float, list[int]}] + ["num_labels"]


def outcome(config_class: type[VaswaniFamilyConfig], fields: dict[str, Any]) -> str:
    """Why a configuration is refused, or nothing where it is one and makes a model."""
    try:
        config = config_class(**fields)
    except (ValueError, StrictDataclassError) as error:
        return one_line(error.__cause__ or error)
    meta_model(config)
    return ""


@pytest.mark.parametrize("config_class", CONFIGS)
def test_every_number_builds_a_model_or_raises_an_error_that_names_it(
    config_class: type[VaswaniFamilyConfig],
) -> None:
    cases = [(name, value) for name in numeric_fields(config_class) for value in VALUES]
    assert len(cases) > 200

    outcomes = run_limited(lambda: [outcome(config_class, {name: value}) for name, value in cases])
    for (name, value), refusal in zip(cases, outcomes, strict=True):
        if refusal:
            assert name in refusal, (name, value, refusal)
            assert str(value) in refusal, (name, value, refusal)
        else:
            of_right_type = isinstance(value, int | float) and not isinstance(value, bool)
            assert of_right_type or (name, value) == ("eos_token_id", [1]), (name, value)
            assert math.isfinite(value if of_right_type else 0), (name, value)
            assert abs(value if of_right_type else 0) < 1e12 or name in {"sparse_seed", *UNUSED}, (
                name,
                value,
            )


TOO_MUCH: dict[str, Any] = {
    "encoder_layers": 1_500_000_000,
    "decoder_layers": 1_500_000_000,
    "num_hidden_layers": 1_500_000_000,
    "num_labels": 1_000_000_000,
    "sparse_random_blocks": 65_536,
    "sparse_window_blocks": 65_537,
    "sparse_global_blocks": 65_536,
    "sparse_global_tokens": 10**9,
    "sparse_block_size": 10**9,
    "encoder_attention": ["full"] * 50_000,
    "decoder_attention": ["full"] * 50_000,
    "layer_norm_eps": math.nan,
    "initializer_range": math.inf,
    "dropout": math.nan,
    "eos_token_id": [10**9] * 1000,
    "id2label": {str(label): "" for label in range(2**18 + 1)},
    "per_layer_config": {"0": {"d_model": 8}},
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_huge_values_in_a_config_file_are_refused_before_allocation(name: str, tmp_path: Path) -> None:
    config_class = VaswaniDecoderConfig if name.startswith("decoder") else VaswaniEncoderConfig
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": config_class.model_type, name: TOO_MUCH[name]}))
    with pytest.raises(UserError) as caught:
        run_limited_read(tmp_path)
    assert str(path) in str(caught.value)
    assert name.removeprefix("num_hidden") in str(caught.value)
    assert len(str(caught.value)) < 1000


def run_limited_read(folder: Path) -> None:
    """Raise what `read_config` raises, within a gigabyte."""

    def refusal() -> str:
        try:
            read_config(folder)
        except UserError as error:
            return str(error)
        return ""

    if message := run_limited(refusal, memory=1 << 30, seconds=60):
        raise UserError(message)


@pytest.mark.parametrize("model_type", ["bert", "marian", "gpt2", "gemma2"])
@pytest.mark.parametrize("name", ["num_labels", "num_hidden_layers", "encoder_layers"])
def test_huge_values_in_library_configs_are_refused_too(model_type: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, name: 1_500_000_000}))
    with pytest.raises(UserError, match=rf"config.json cannot be used: {name}=1500000000 must be"):
        run_limited_read(tmp_path)


def test_a_pattern_with_few_blocks_allocates_no_memory_for_many() -> None:
    """What a block may see at most is bounded by the blocks that there are."""
    pattern = SparsePattern(num_heads=2, block_size=1, random_blocks=2**16, window_blocks=2**16 + 1)
    few = SparsePattern(num_heads=2, block_size=1, random_blocks=9, window_blocks=17)
    assert pattern.key_blocks(9).numel() < 1000
    assert torch.equal(pattern.block_mask(9), few.block_mask(9))


def test_id2label_keys_must_be_numbers() -> None:
    with pytest.raises(
        ValueError, match=re.escape("id2label has the key 'good'; expected numbers of labels")
    ):
        VaswaniEncoderConfig(id2label={"good": "bad"})
