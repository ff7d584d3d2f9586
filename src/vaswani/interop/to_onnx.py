"""Export models to ONNX (https://onnx.ai), the format of ONNX Runtime and of other engines.

The files and the names of their inputs and outputs are those of Optimum. Batches, lengths and the number of
tokens in the cache are dynamic. The exported model computes the same outputs to rounding: tests compare
logits and tokens.

B batch · S source length · T target length · P tokens in the cache · H heads · D head width · V vocabulary
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from vaswani.errors import UserError
from vaswani.interop.onnx_runtime import import_onnxruntime
from vaswani.model.compatibility import CACHE_NAME

QUANTIZATIONS = ("float32", "int8")
INSTALL = 'install it with: pip install "vaswani[onnx]"'

MODEL = "model.onnx"  # for a model of one stack
ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
DECODER_WITH_PAST = "decoder_with_past_model.onnx"

# The dynamic axes of encoder-decoders and of models of one stack.
BATCH, SOURCE, TARGET = "batch_size", "encoder_sequence_length", "decoder_sequence_length"
PAST = "past_decoder_sequence_length"
CHOICES, LENGTH, PAST_LENGTH = "num_choices", "sequence_length", "past_sequence_length"
TOTAL_LENGTH = "total_sequence_length"  # the sum of the last two
# Sizes of these axes in the traced examples; the exported axes are dynamic.
EXAMPLE_SIZES = {
    BATCH: 2,
    SOURCE: 7,
    TARGET: 5,
    PAST: 4,
    CHOICES: 3,
    LENGTH: 6,
    PAST_LENGTH: 4,
    TOTAL_LENGTH: 10,
}

Tensors = dict[str, torch.Tensor]


def export_to_onnx(model: PreTrainedModel, folder: Path, *, quantization: str | None = None) -> None:
    """Write a model into an empty folder as ONNX files, with its config.json and without its tokenizers.

    An encoder-decoder becomes `encoder_model.onnx`, `decoder_model.onnx`, which makes a cache, and
    `decoder_with_past_model.onnx`, which takes one. Each file has its own weights. Other models become
    `model.onnx`; for a causal language model, it takes a cache, empty at first, and returns it.

    Args:
        model: a model of a class in `GRAPHS`; it is not changed.
        folder: an existing folder.
        quantization: one of `QUANTIZATIONS`; None keeps float32. `"int8"` quantizes the weights of matrix
            products; their inputs are quantized while the model runs.

    Raises:
        UserError: the packages for ONNX are not installed, there is no such quantization, or the class or
            the value of a field cannot be exported.
    """
    check_onnx(quantization)
    check_exportable(model)
    reference = copy.deepcopy(model).float().eval()
    reference.set_attn_implementation("eager")
    for graph in GRAPHS[type(model).__name__](reference):
        _write(reference, graph, folder / graph.file)
        if quantization == "int8":
            _quantize(folder / graph.file)
    _write_config(model, folder / "config.json")


def _write_config(model: PreTrainedModel, path: Path) -> None:
    """Write the configuration without `auto_map`, which names code that an export does not need or hold."""
    values = model.config.to_diff_dict()
    values.pop("auto_map", None)
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check_onnx(quantization: str | None) -> None:
    """Raise `UserError` if a package for ONNX is not installed, or there is no such quantization."""
    try:
        import_onnxruntime()
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX is not installed ({error}); {INSTALL}") from error
    if quantization not in (None, *QUANTIZATIONS):
        raise UserError(
            f"unknown quantization {quantization!r} for ONNX; choose one of {', '.join(QUANTIZATIONS)}"
        )


def check_exportable(model: PreTrainedModel) -> None:
    """Raise `UserError` if a model cannot be exported."""
    if type(model).__name__ not in GRAPHS:
        raise UserError(f"{type(model).__name__} cannot be exported to ONNX; these can: {', '.join(GRAPHS)}")
    check_full_attention(model.config, "ONNX")


def check_full_attention(config: Any, form: str) -> None:
    """Raise `UserError` if a model has sparse attention, which no model in the form of an engine has."""
    for stack in config.stacks:
        if "sparse" in config.layer_attention(stack):
            found = getattr(config, f"{stack}_attention")
            raise UserError(
                f"{stack}_attention={found!r} is not supported: {form} models have full attention only; run "
                "the model itself (--engine torch), or save it by torch.export"
            )


# -------------------------------------------------------------------------------------------- kinds of models


@dataclass(frozen=True)
class Graph:
    """The computation that one file holds.

    Args:
        file: name of the file.
        compute: computes the outputs from a model and the inputs by name.
        inputs: the shape of each input, by name. Strings are dynamic axes.
        outputs: names of the outputs.
    """

    file: str
    compute: Callable[[Any, Tensors], list[torch.Tensor]]
    inputs: dict[str, tuple[int | str, ...]]
    outputs: list[str]


def _encoder_decoder(model: Any) -> list[Graph]:
    """Return the graphs of an encoder-decoder: the encoder, the first decoding step and the later steps."""
    config = model.config
    heads = config.decoder_attention_heads
    past = {
        f"{layer}.{stack}.{part}": (BATCH, heads, length, width)
        for layer in range(config.decoder_layers)
        for stack, length in (("decoder", PAST), ("encoder", SOURCE))
        for part, width in zip(("key", "value"), config.head_widths(heads), strict=True)
    }
    source = {"encoder_attention_mask": (BATCH, SOURCE)}
    target = {"input_ids": (BATCH, TARGET)}
    return [
        Graph(
            ENCODER,
            _encode,
            {"input_ids": (BATCH, SOURCE), "attention_mask": (BATCH, SOURCE)},
            ["last_hidden_state"],
        ),
        Graph(
            DECODER,
            _decode,
            {**source, **target, "encoder_hidden_states": (BATCH, SOURCE, config.d_model)},
            ["logits", *(f"present.{name}" for name in past)],
        ),
        Graph(
            DECODER_WITH_PAST,
            _decode_with_past,
            {**source, **target, **{f"past_key_values.{name}": shape for name, shape in past.items()}},
            ["logits", *(f"present.{name}" for name in past if ".decoder." in name)],
        ),
    ]


def _encode(model: Any, inputs: Tensors) -> list[torch.Tensor]:
    """Return the encoder's states [B, S, d_model]."""
    return [model.get_encoder()(**inputs).last_hidden_state]


def _decode(model: Any, inputs: Tensors) -> list[torch.Tensor]:
    """Return the logits [B, T, V], and the keys and values of all layers, [B, H, T or S, D]."""
    outputs = model(
        encoder_outputs=(inputs["encoder_hidden_states"],),
        attention_mask=inputs["encoder_attention_mask"],
        decoder_input_ids=inputs["input_ids"],
        use_cache=True,
    )
    cache = outputs[CACHE_NAME]
    layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
    states = [(own.keys, own.values, source.keys, source.values) for own, source in layers]
    return [outputs.logits, *(state for layer in states for state in layer)]


def _decode_with_past(model: Any, inputs: Tensors) -> list[torch.Tensor]:
    """Return the logits [B, T, V] after a cache, and the target's keys and values [B, H, P + T, D]."""
    past = [state for name, state in inputs.items() if name.startswith("past_key_values.")]
    own, source = ([(past[i], past[i + 1]) for i in range(start, len(past), 4)] for start in (0, 2))
    cache = EncoderDecoderCache(DynamicCache(own), DynamicCache(source))
    rows, length = inputs["encoder_attention_mask"].shape
    outputs = model(
        encoder_outputs=(past[2].new_zeros(rows, length, model.config.d_model),),  # only its shape is read
        attention_mask=inputs["encoder_attention_mask"],
        decoder_input_ids=inputs["input_ids"],
        past_key_values=cache,
        use_cache=True,
    )
    layers = outputs[CACHE_NAME].self_attention_cache.layers
    return [outputs.logits, *(state for layer in layers for state in (layer.keys, layer.values))]


def _one_pass(*outputs: str, choices: bool = False) -> Callable[[Any], list[Graph]]:
    """Return a function that makes the graph of a model without a cache.

    Args:
        outputs: fields of the model's output.
        choices: whether a row of the batch has several texts.
    """

    def graphs(model: Any) -> list[Graph]:
        shape = (BATCH, CHOICES, LENGTH) if choices else (BATCH, LENGTH)
        names = ["input_ids", "attention_mask"]
        if getattr(model.config, "token_type_vocab_size", 0):
            names.append("token_type_ids")
        returned = [name for name in outputs if name != "pooler_output" or model.pooler is not None]
        return [Graph(MODEL, _fields(returned), dict.fromkeys(names, shape), returned)]

    return graphs


def _fields(names: list[str]) -> Callable[[Any, Tensors], list[torch.Tensor]]:
    """Return a function that computes these fields of a model's output."""

    def compute(model: Any, inputs: Tensors) -> list[torch.Tensor]:
        outputs = model(**inputs)
        return [outputs[name] for name in names]

    return compute


def _causal(model: Any) -> list[Graph]:
    """Return the graph of a causal language model."""
    config = model.config
    heads = config.decoder_attention_heads
    past = {
        f"{layer}.{part}": (BATCH, heads, PAST_LENGTH, width)
        for layer in range(config.decoder_layers)
        for part, width in zip(("key", "value"), config.head_widths(heads), strict=True)
    }
    # With `position_from_mask`, the file counts the tokens that the mask shows; without positions, none.
    counts_all = not config.position_from_mask and config.position_embedding != "none"
    inputs: dict[str, tuple[int | str, ...]] = {
        "input_ids": (BATCH, LENGTH),
        "attention_mask": (BATCH, TOTAL_LENGTH),
        **({"position_ids": (BATCH, LENGTH)} if counts_all else {}),
        **{f"past_key_values.{name}": shape for name, shape in past.items()},
    }
    return [Graph(MODEL, _continue, inputs, ["logits", *(f"present.{name}" for name in past)])]


def _continue(model: Any, inputs: Tensors) -> list[torch.Tensor]:
    """Return the logits [B, T, V] after a cache, and its new keys and values, [B, H, P + T, D]."""
    past = [state for name, state in inputs.items() if name.startswith("past_key_values.")]
    outputs = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        position_ids=inputs.get("position_ids"),
        past_key_values=DynamicCache([*zip(past[::2], past[1::2], strict=True)]),
        use_cache=True,
    )
    layers = outputs[CACHE_NAME].layers
    return [outputs.logits, *(state for layer in layers for state in (layer.keys, layer.values))]


# The classes that can be exported, with the functions that make their graphs.
GRAPHS: dict[str, Callable[[Any], list[Graph]]] = {
    "VaswaniForConditionalGeneration": _encoder_decoder,
    "VaswaniForCausalLM": _causal,
    "VaswaniEncoderModel": _one_pass("last_hidden_state", "pooler_output"),
    "VaswaniDecoderModel": _one_pass("last_hidden_state"),
    "VaswaniForPreTraining": _one_pass("prediction_logits", "seq_relationship_logits"),
    "VaswaniForMultipleChoice": _one_pass("logits", choices=True),
    **dict.fromkeys(
        (
            *("VaswaniForMaskedLM", "VaswaniForSequenceClassification", "VaswaniForTokenClassification"),
            *("VaswaniForNextSentencePrediction", "VaswaniDecoderForSequenceClassification"),
            "VaswaniDecoderForTokenClassification",
        ),
        _one_pass("logits"),
    ),
    **dict.fromkeys(
        ("VaswaniForQuestionAnswering", "VaswaniDecoderForQuestionAnswering"),
        _one_pass("start_logits", "end_logits"),
    ),
}


# --------------------------------------------------------------------------------------------------- writing


class _Traced(nn.Module):
    """A graph of a model as a module whose inputs and outputs are tensors in order."""

    def __init__(self, model: nn.Module, graph: Graph):
        super().__init__()
        self.model = model
        self.graph = graph

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs of the graph."""
        return tuple(self.graph.compute(self.model, dict(zip(self.graph.inputs, inputs, strict=True))))


def _write(model: nn.Module, graph: Graph, path: Path) -> None:
    """Trace a graph and write its file; from 2 GB on, the weights are in another file beside it."""
    axes = tuple(
        {place: axis for place, axis in enumerate(shape) if isinstance(axis, str)}
        for shape in graph.inputs.values()
    )
    shapes = tuple({place: _dimension(axis) for place, axis in of_input.items()} for of_input in axes)
    examples = tuple(_example(name, shape) for name, shape in graph.inputs.items())
    with _hidden_notices(), torch.no_grad():
        # Not left to `torch.onnx.export`, which tries other strategies if the first would fix a length.
        program = torch.export.export(_Traced(model, graph), examples, dynamic_shapes=(shapes,))
        exported: Any = torch.onnx.export(
            program,
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            dynamic_shapes=(axes,),  # names of the axes
            verbose=False,
        )
        exported.save(path)


def _dimension(axis: str) -> Any:
    """Return an axis for `torch.export`, which infers the axis that is a sum."""
    return torch.export.Dim.AUTO if axis == TOTAL_LENGTH else torch.export.Dim(axis)


def _example(name: str, shape: tuple[int | str, ...]) -> torch.Tensor:
    """Return an input of this shape: int64 for token ids and masks, else float32."""
    sizes = [EXAMPLE_SIZES[axis] if isinstance(axis, str) else axis for axis in shape]
    return torch.ones(sizes, dtype=torch.long if name.endswith(("_ids", "_mask")) else torch.float32)


@contextmanager
def _hidden_notices() -> Iterator[None]:
    """Hide notices of the exporter and the quantizer, such as those about image packages or axis names."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", None)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _quantize(path: Path) -> None:
    """Replace a file by one with int8 weights.

    Weights of products have a scale for each column. They use only 7 bits, because sums of 8-bit products
    overflow on processors without VNNI. ONNX Runtime gives embeddings, and an output projection that shares
    them, 8 bits and one scale for the matrix.
    """
    import_onnxruntime()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.rename(path.with_suffix(".float32"))
    with _hidden_notices():
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    whole.unlink()
