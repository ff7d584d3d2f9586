"""Fingerprints of models, tokenizers, configurations and rows: what the outputs of a teacher depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import Side, TextCodec, marks_languages, text_settings
from vaswani.inference.translate.ensembling import Ensemble

# Entries of a configuration that do not change a model's outputs. (The dtypes of the weights count instead.)
NOISE = {
    *("_name_or_path", "_from_model_config", "architectures", "auto_map", "dtype", "transformers_version"),
}
ROWS_HASHED_AT_ONCE = 10_000


def fingerprint_model(model: PreTrainedModel) -> str:
    """SHA-256 of a model: its configuration, and the name, dtype, shape and bytes of each weight.

    Neither the folder it was loaded from nor the version of transformers counts. Tied weights count once. The
    configuration of an ensemble lacks most fields of its members, so theirs count, too.
    """
    digest = hashlib.sha256(canonical_config(model.config).encode())
    for member in model.members if isinstance(model, Ensemble) else ():
        digest.update(canonical_config(member.config).encode())
    seen = set()
    for name, tensor in sorted(model.state_dict().items()):
        place = (tensor.data_ptr(), tensor.shape)
        if place in seen:
            continue
        seen.add(place)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase, side: Side = "source") -> str:
    """SHA-256 of everything that determines how a tokenizer encodes the texts of one side."""
    codec = TextCodec(tokenizer, side)
    around = text_settings(tokenizer) if side == "source" else {**text_settings(tokenizer), "prefix": ""}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        is_marked = side == "source" and marks_languages(tokenizer)
        # The language of targets is not included: each call gives it.
        around["language"] = str(codec.frame()) if is_marked else ""
        return _sha256(json.dumps([codec.vocabulary(), around], sort_keys=True))
    call_options = {"padding": None, "truncation": None}  # left over from the last call
    tokens = {**json.loads(backend.to_str()), **call_options}
    return _sha256(json.dumps([tokens, around], sort_keys=True))


def fingerprint_config(config: Any) -> str:
    """SHA-256 of a configuration of transformers (see `canonical_config`)."""
    return _sha256(canonical_config(config))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_config(config: Any) -> str:
    """A configuration of transformers as JSON, without the entries in `NOISE`."""

    def without_noise(entries: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in entries.items() if name not in NOISE}

    entries = json.loads(config.to_json_string(use_diff=False), object_hook=without_noise)
    return json.dumps(entries, sort_keys=True)


def fingerprint_rows(dataset: Dataset, columns: Sequence[str]) -> str:
    """SHA-256 of columns of texts, of numbers, or of lists of either.

    Equal rows have equal fingerprints, however they are stored: in one file or several, selected or copied.
    """
    digest = hashlib.sha256(f"{len(dataset)} {list(columns)}".encode())
    tables = dataset.select_columns(list(columns)).with_format("arrow").iter(ROWS_HASHED_AT_ONCE)
    for table in tables:
        for name in columns:
            _hash_values(digest, table[name].combine_chunks())
    return digest.hexdigest()


def _hash_values(digest: Any, array: pa.Array) -> None:
    """Hash the values of an array, not its buffers: the buffers of a slice hold more than the slice."""
    digest.update(array.is_valid().to_numpy(zero_copy_only=False))
    array = array.drop_null()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        texts = pa.ListArray.from_arrays([0, len(array)], array.cast(pa.string()))
        digest.update(pc.binary_length(array).to_numpy().astype(np.int64))
        digest.update(pc.binary_join(texts, "")[0].as_buffer())
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        digest.update(pc.list_value_length(array).to_numpy().astype(np.int64))
        _hash_values(digest, array.flatten())
    else:
        digest.update(array.to_numpy(zero_copy_only=False))
