"""The part of a model card that needs only the model: its architecture and how to load it.

A model that is pushed without a training has a card with this part only. `vaswani.hub.card` adds the data,
scores and limits of a training.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, ModelCard, ModelCardData
from transformers import PreTrainedConfig
from transformers.utils import PushToHubMixin

from vaswani.files.run_files import ADAPTER_CONFIG
from vaswani.hub.run_metadata import auto_class_of
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.model.stacks import VaswaniPreTrainedModel

CARD_FILE_NAME = "README.md"
SAVED = (
    *("config.json", "generation_config.json", "model*.safetensors", "model*.safetensors.index.json"),
    *(ADAPTER_CONFIG, "adapter_model*.safetensors", "*.py", CARD_FILE_NAME),
)
MARK = "<!-- Written by vaswani from what it knows. Delete this line to keep what you write here. -->"
PAPER = "[Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)"


def hook_in() -> None:
    """Push vaswani models with a card that describes them, instead of the library's blank form.

    `push_to_hub` and `save_pretrained(push_to_hub=True)` both call the method that is replaced here.
    """
    model_class: Any = VaswaniPreTrainedModel
    model_class._upload_modified_files = _upload_modified_files


def _upload_modified_files(
    self: Any,
    working_dir: str | os.PathLike,
    repo_id: str,
    files_timestamps: dict[str, float],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Upload the files that a model saves, without links, and a card unless the repository has one."""
    others = [path.name for path in Path(working_dir).iterdir() if not _is_of_a_model(path)]
    # Only files that are newer than these times are uploaded.
    files_timestamps = {**files_timestamps, **dict.fromkeys(others, math.inf)}
    if not HfApi().file_exists(repo_id, CARD_FILE_NAME, token=kwargs.get("token")):
        card = plain_model_card(self.config, self.num_parameters(), repo_id)
        card.save(Path(working_dir) / CARD_FILE_NAME)
    return PushToHubMixin._upload_modified_files(
        self, working_dir, repo_id, files_timestamps, *args, **kwargs
    )


def _is_of_a_model(path: Path) -> bool:
    is_known = any(fnmatchcase(path.name, pattern) for pattern in SAVED)
    return is_known and path.is_file() and not path.is_symlink()


def plain_model_card(config: VaswaniFamilyConfig, num_parameters: int, repo_id: str) -> ModelCard:
    """Return the card of a model whose training is unknown.

    Args:
        config: configuration of the model, with the name of its class.
        num_parameters: number of parameters; shared parameters count once.
        repo_id: name from which the model can be loaded.
    """
    data = ModelCardData(library_name="transformers", tags=model_tags(config))
    parts = [
        f"# {repo_id.rpartition('/')[2]}",
        f"{describe(config, num_parameters)}. This card was written from the model alone: training data and "
        "quality are not stated.",
        "## Use",
        usage(config, repo_id),
        "## Architecture",
        architecture_table(config, num_parameters),
    ]
    return card_of(data, parts)


def card_of(metadata: ModelCardData, parts: Iterable[str]) -> ModelCard:
    """Return a card with metadata for the Hub and these paragraphs."""
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join([*parts, MARK]) + "\n")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """Return a table in Markdown, with "|" escaped; the columns in `numbers` are aligned right."""
    rule = ["---:" if name in numbers else "---" for name in head]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in [head, rule, *rows])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def model_tags(config: PreTrainedConfig) -> list[str]:
    """Return the tags by which the Hub finds the model."""
    if isinstance(config, VaswaniFamilyConfig):
        return ["vaswani", "-".join(config.stacks), *["sparse-attention"] * _is_sparse(config)]
    return [config.model_type, *["encoder-decoder"] * config.is_encoder_decoder]


def describe(config: PreTrainedConfig, num_parameters: int) -> str:
    """Describe the model in one sentence, without its full stop."""
    if not isinstance(config, VaswaniFamilyConfig):
        form = "An encoder-decoder" if config.is_encoder_decoder else "A model"
        return f"{form} of type {config.model_type} with {num_parameters:,} parameters"
    counts = [(getattr(config, f"{stack}_layers"), stack) for stack in config.stacks]
    layers = " and ".join(f"{count} {stack} layer{'s' * (count > 1)}" for count, stack in counts)
    return (
        f"A Transformer {'-'.join(config.stacks)} ({PAPER}) with {layers} of width {config.d_model}, "
        f"{num_parameters:,} parameters{' and sparse attention' * _is_sparse(config)}"
    )


def _is_sparse(config: VaswaniFamilyConfig) -> bool:
    return any("sparse" in config.layer_attention(stack) for stack in config.stacks)


def architecture_table(config: VaswaniFamilyConfig, num_parameters: int, adapter_parameters: int = 0) -> str:
    """Return a Markdown table of the model's sizes and options.

    Args:
        config: configuration of the model.
        num_parameters: number of parameters; shared parameters count once.
        adapter_parameters: number of parameters in the model's adapter; 0 without one.
    """
    positions = {
        "sinusoidal": f"sinusoidal ({config.sinusoidal_layout}), of any length",
        "learned": f"learned, {config.max_position_embeddings:,} at most",
        "none": "none",
    }
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    megabytes = num_parameters * dtype.itemsize / 1e6
    rows = {
        "Parameters": f"{num_parameters:,}",
        "Size": f"{megabytes:,.1f} MB of weights in {str(dtype).removeprefix('torch.')}",
        **({"Adapter": f"{adapter_parameters:,} parameters"} if adapter_parameters else {}),
        "Vocabulary": _vocabulary(config),
        "Width (d_model)": f"{config.d_model:,}",
        "Layers": _size_per_stack(config, "layers"),
        "Attention heads": _size_per_stack(config, "attention_heads"),
        **({} if config.key_dim is None else {"Width of a head's keys": f"{config.key_dim:,}"}),
        "Feed-forward width": _size_per_stack(config, "ffn_dim"),
        "Activation": config.activation_function,
        "Layer norm": {"post": "after each sublayer (post-norm)", "pre": "before each sublayer (pre-norm)"}[
            config.norm_order
        ],
        "Positions": positions[config.position_embedding],
        **{f"{stack.title()} self-attention": _attention(config, stack) for stack in config.stacks},
    }
    if auto_class_of(config).__name__ in _WITH_VOCABULARY_HEAD:
        tied = f"the {'target ' * config.is_encoder_decoder}embedding"
        rows["Output projection"] = tied if config.tie_word_embeddings else "weights of its own"
    return markdown_table(["", ""], rows.items())


def _size_per_stack(config: VaswaniFamilyConfig, size: str) -> str:
    """Return a size of each stack, such as `6 encoder, 6 decoder`."""
    return ", ".join(f"{getattr(config, f'{stack}_{size}'):,} {stack}" for stack in config.stacks)


def _vocabulary(config: VaswaniFamilyConfig) -> str:
    if not config.is_encoder_decoder:
        return f"{config.vocab_size:,} tokens"
    if config.share_encoder_decoder_embeddings:
        return f"{config.vocab_size:,} tokens, shared"
    return f"{config.vocab_size:,} source and {config.decoder_vocab_size:,} target tokens"


def _attention(config: VaswaniFamilyConfig, stack: str) -> str:
    layers = config.layer_attention(stack)
    sparse = [str(number + 1) for number, kind in enumerate(layers) if kind == "sparse"]
    if not sparse:
        return "full"
    reach = (
        f"{config.sparse_global_tokens} global tokens"
        if config.sparse_global_tokens
        else f"{config.sparse_global_blocks} global"
    )
    where = "sparse" if len(sparse) == len(layers) else f"sparse in layers {', '.join(sparse)}, else full"
    return (
        f"{where}: blocks of {config.sparse_block_size} tokens, {config.sparse_window_blocks} in the window, "
        f"{reach}, {config.sparse_random_blocks} random (seed {config.sparse_seed})"
    )


# Classes whose models have a projection onto the vocabulary.
_WITH_VOCABULARY_HEAD = (
    *("AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForPreTraining"),
)
_BEST_WORDS = (
    'place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)\n'
    "best = model(**inputs).{logits}[0, place].topk(5).indices\n"
    "print([tokenizer.decode([token]) for token in best])"
)
# The last lines of a snippet for a model that does not generate.
_SHOWN = {
    "AutoModel": "print(model(**inputs).last_hidden_state.shape)",
    "AutoModelForMaskedLM": _BEST_WORDS.format(logits="logits"),
    "AutoModelForPreTraining": _BEST_WORDS.format(logits="prediction_logits"),
    "AutoModelForQuestionAnswering": (
        "outputs = model(**inputs)\n"
        "# The likeliest span of the second text:\n"
        "places = [place for place, part in enumerate(inputs.sequence_ids()) if part == 1]\n"
        "starts = outputs.start_logits[0, places].softmax(-1)\n"
        "ends = outputs.end_logits[0, places].softmax(-1)\n"
        "start, end = divmod(int(starts.outer(ends).triu().argmax()), len(places))\n"
        'print(tokenizer.decode(inputs["input_ids"][0, places[start : end + 1]]))'
    ),
    "AutoModelForMultipleChoice": (
        "choices = {name: values[None] for name, values in inputs.items()}\n"
        "print(model(**choices).logits[0].softmax(-1).tolist())"
    ),
    "AutoModelForTokenClassification": (
        'tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])\n'
        "labels = model(**inputs).logits[0].argmax(-1).tolist()\n"
        "print([(token, model.config.id2label[label]) for token, label in zip(tokens, labels)])"
    ),
}
# A snippet for a model that answers questions, of texts of any length.
_ANSWERING = (
    "```python\n"
    "import vaswani\n\n"
    "answerer = vaswani.QuestionAnswerer.from_pretrained({place})\n"
    "(answer,) = answerer.answer([({pair})])\n"
    "print(answer.text)\n"
    "```"
)
# The arguments of the tokenizer for a model that chooses one of several continuations of a text.
_CHOICES = '["Ann saw"] * 2, ["Rome.", "a film."], padding=True'
# The text of a snippet for a model that fills in words; only its tokenizer knows the mask.
_MASKED_TEXT = 'f"The {tokenizer.mask_token} is good."'
# The lines of a snippet for a model that answers chats; only its tokenizer knows the template.
_CHAT_INPUTS = (
    'messages = [{"role": "user", "content": "A question"}]\n'
    "inputs = tokenizer.apply_chat_template(\n"
    '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"\n'
    ")"
)
# The last lines of a snippet for a classifier.
_PROBABILITIES = (
    "probabilities = model(**inputs).logits[0].{function}.tolist()\n"
    "print({{model.config.id2label[label]: share for label, share in enumerate(probabilities)}})"
)


def _auto_class(config: PreTrainedConfig) -> str:
    """Return the Auto class that loads a checkpoint with this configuration."""
    found = auto_class_of(config).__name__ if config.architectures else "AutoModel"
    # Checkpoints such as BART's name the class without a head, whose output layer is the embedding.
    has_head = config.is_encoder_decoder and not isinstance(config, VaswaniFamilyConfig)
    return "AutoModelForSeq2SeqLM" if found == "AutoModel" and has_head else found


def _running(auto_class: str, config: PreTrainedConfig, decoder: str) -> str:
    """Return the lines of Python that run a model and print what it returns."""
    if auto_class in ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM"):
        return f"print({decoder}.batch_decode(model.generate(**inputs), skip_special_tokens=True))"
    if auto_class == "AutoModel" and config.is_encoder_decoder:
        return "print(model.encoder(**inputs).last_hidden_state.shape)"
    is_regressor = config.problem_type == "regression" or config.num_labels == 1
    if auto_class == "AutoModelForSequenceClassification" and not is_regressor:
        is_multi_label = config.problem_type == "multi_label_classification"
        return _PROBABILITIES.format(function="sigmoid()" if is_multi_label else "softmax(-1)")
    return _SHOWN.get(auto_class, "print(model(**inputs).logits)")


_EXAMPLES = {
    "AutoModelForSeq2SeqLM": "A text to translate.",
    "AutoModelForCausalLM": "The beginning of a text",
    "AutoModelForSequenceClassification": "A text to classify.",
    "AutoModelForTokenClassification": "Words to tag.",
}
NEUTRAL_QUESTION = ("Who saw Rome?", "Ann saw Rome.")  # for models that answer questions


def neutral_example(config: PreTrainedConfig) -> str:
    """Return a text that tells what the model reads, for a model without examples of its own."""
    return _EXAMPLES.get(_auto_class(config), "A text.")


def usage(
    config: PreTrainedConfig,
    repo_id: str,
    example: str | None = None,
    second_example: str | None = None,
    target_tokenizer: str | None = None,
    adapts: str | None = None,
    text_code: str | None = None,
    is_chat: bool = False,
) -> str:
    """Return Markdown that shows how to load the model, with the plugin and, for vaswani models, without it.

    Args:
        config: configuration of the model, with the name of its class.
        repo_id: name from which the model can be loaded.
        example: a text to translate, a question, or the first text of a pair; default `neutral_example`. A
            model that fills in words gets a text with a mask instead.
        second_example: the text that answers the question, or the second text of a pair.
        target_tokenizer: subfolder of the target tokenizer in the repository, if there is one.
        adapts: for an adapter, the name of its model.
        text_code: Python code of the text instead of `example`, for a text with tokens that only the
            tokenizer knows.
        is_chat: whether the model answers chats, which the tokenizer's template renders.
    """
    auto_class = _auto_class(config)
    answers = auto_class == "AutoModelForQuestionAnswering"
    if answers and second_example is None:
        example, second_example = NEUTRAL_QUESTION
    decoder = "tokenizer" if target_tokenizer is None else "target_tokenizer"
    examples = [example or neutral_example(config), *([] if second_example is None else [second_example])]
    texts = ", ".join(f"[{json.dumps(text, ensure_ascii=False)}]" for text in examples)
    if auto_class in ("AutoModelForMaskedLM", "AutoModelForPreTraining"):
        text_code = _MASKED_TEXT
    if text_code is not None:
        texts = f"[{text_code}]"
    if auto_class == "AutoModelForMultipleChoice":
        texts = _CHOICES
    inputs = _CHAT_INPUTS if is_chat else f'inputs = tokenizer({texts}, return_tensors="pt")'
    run = _running(auto_class, config, decoder)

    def snippet(first_line: str = "", options: str = "") -> str:
        place = f'"{repo_id}"{options}'
        imports, loads = f"{auto_class}, AutoTokenizer", [f"model = {auto_class}.from_pretrained({place})"]
        if adapts is not None:
            imports, first_line = f"AutoConfig, {imports}", f"{first_line}from peft import PeftModel\n"
            loads = [
                f"config = AutoConfig.from_pretrained({place})",
                f"base = {auto_class}.from_pretrained({json.dumps(adapts)}, config=config{options})",
                f'model = PeftModel.from_pretrained(base, "{repo_id}")',
            ]
        if target_tokenizer is not None:
            subfolder = f'subfolder="{target_tokenizer}"'
            loads.insert(0, f"{decoder} = AutoTokenizer.from_pretrained({place}, {subfolder})")
        lines = [
            f"{first_line}from transformers import {imports}\n",
            f"tokenizer = AutoTokenizer.from_pretrained({place})",
            *loads,
            inputs,
            run,
        ]
        return "\n".join(["```python", *lines, "```"])

    if not isinstance(config, VaswaniFamilyConfig):
        return snippet()
    with_plugin = snippet(first_line="import vaswani\n")
    if answers and adapts is None:
        pair = ", ".join(json.dumps(text, ensure_ascii=False) for text in examples)
        with_plugin = _ANSWERING.format(place=json.dumps(repo_id), pair=pair)
    parts = [
        "With the plugin:",
        with_plugin,
        "Without the plugin, pass `trust_remote_code=True`. This runs the code in this repository on your "
        'machine: read it first, and pin the revision that you have read (`revision="..."`):',
        snippet(options=", trust_remote_code=True"),
    ]
    return "\n\n".join(parts)
