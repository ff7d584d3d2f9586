"""The library's own trainers train, smooth, accumulate and evaluate our models as they do its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from transformers.utils.generic import find_labels

import vaswani
from tiny import batch, tiny_model
from vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig

ROWS, LENGTH, VOCAB = 8, 9, 40
SHAPE: dict[str, Any] = {"vocab_size": VOCAB, "d_model": 16, "dropout": 0.0, "attention_dropout": 0.0}
ENCODER = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}
LABELS = {"labels", "next_sentence_label", "start_positions", "end_positions"}

texts = torch.randint(3, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
places = torch.arange(ROWS)
# Kinds of labels of our classes; None: the class returns no loss.
SEVERAL = {"num_labels": 3, "problem_type": "multi_label_classification"}
HEADS: list[tuple[str, dict[str, Any], dict[str, torch.Tensor]]] = [
    ("VaswaniForConditionalGeneration", {}, {"labels": texts.flip(1)}),
    ("VaswaniForMaskedLM", {}, {"labels": texts}),
    ("VaswaniForPreTraining", {}, {"labels": texts, "next_sentence_label": places % 2}),
    ("VaswaniForCausalLM", {}, {"labels": texts}),
    ("VaswaniForNextSentencePrediction", {}, {"labels": places % 2}),
    ("VaswaniForMultipleChoice", {}, {"labels": places % 2}),
    ("VaswaniForTokenClassification", {"num_labels": 3}, {"labels": texts % 3}),
    ("VaswaniForQuestionAnswering", {}, {"start_positions": places % 4, "end_positions": places % 4 + 2}),
    *(
        (f"Vaswani{kind}ForSequenceClassification", fields, {"labels": labels})
        for kind in ("", "Decoder")
        for fields, labels in (
            ({"num_labels": 3}, places % 3),
            ({"num_labels": 1}, places.float()),
            (SEVERAL, torch.stack([places % 2, places % 3 == 0, places > 5], 1).float()),
        )
    ),
]
of_each_head = pytest.mark.parametrize(
    ("name", "fields", "labels"),
    HEADS,
    ids=[" ".join([head[0], *map(str, head[1].values())]) for head in HEADS],
)


def model_of(name: str, fields: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model_class = getattr(vaswani, name)
    shapes = {VaswaniEncoderConfig: ENCODER, VaswaniDecoderConfig: DECODER}
    shape = shapes.get(model_class.config_class, ENCODER | DECODER)
    return model_class(model_class.config_class(**SHAPE, **shape, **fields, initializer_range=0.3))


def rows(name: str, labels: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    given = {"input_ids": texts, "attention_mask": torch.ones_like(texts), **labels}
    if name == "VaswaniForMultipleChoice":
        given |= {
            key: torch.stack([given[key], given[key].flip(0)], 1) for key in ("input_ids", "attention_mask")
        }
    return [{key: value[row] for key, value in given.items()} for row in range(ROWS)]


def arguments(folder: Path, **options: Any) -> dict[str, Any]:
    given = {"output_dir": str(folder), "report_to": [], "use_cpu": True, "max_steps": 1, "optim": "sgd"}
    given |= {"lr_scheduler_type": "constant", "learning_rate": 0.1, "max_grad_norm": 0.0}
    return given | {"disable_tqdm": True, "save_strategy": "no", "per_device_eval_batch_size": 3} | options


def test_only_label_columns_are_named_like_labels() -> None:
    """The library takes all others for labels, too, and evaluates without a loss where one is missing."""
    classes = [
        getattr(vaswani, name) for name in vaswani.__all__ if hasattr(getattr(vaswani, name), "forward")
    ]
    classes = [each for each in classes if issubclass(each, nn.Module)]
    assert len(classes) > 12
    assert {name for each in classes for name in find_labels(each)} == LABELS


@of_each_head
def test_an_evaluation_has_a_loss_and_metrics(
    name: str, fields: dict[str, Any], labels: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    seen = []
    is_translator = name == "VaswaniForConditionalGeneration"
    kinds: Any = (Seq2SeqTrainer, Seq2SeqTrainingArguments) if is_translator else (Trainer, TrainingArguments)
    trainer = kinds[0](
        model=model_of(name, fields),
        args=kinds[1](**arguments(tmp_path)),
        eval_dataset=rows(name, labels),
        compute_metrics=lambda predicted: {"rows": len(seen.append(predicted) or predicted.label_ids)},
    )
    assert trainer.evaluate()["eval_loss"] > 0
    assert len(seen) == 1


@of_each_head
def test_batches_in_parts_make_the_update_of_the_whole(
    name: str, fields: dict[str, Any], labels: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    moved = []
    for size in (ROWS, 2):
        model = model_of(name, fields)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        options = arguments(
            tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=ROWS // size
        )
        options |= {"train_sampling_strategy": "sequential"}
        Trainer(model, TrainingArguments(**options), train_dataset=rows(name, labels)).train()
        moved.append({key: value - before[key] for key, value in model.state_dict().items()})
    assert any(each.abs().max() > 1e-4 for each in moved[0].values())
    for key, expected in moved[0].items():
        torch.testing.assert_close(moved[1][key], expected, rtol=1e-3, atol=1e-6)


def test_smoothed_labels_of_a_causal_model_are_the_next_tokens(tmp_path: Path) -> None:
    model = model_of("VaswaniForCausalLM", {})
    args = TrainingArguments(**arguments(tmp_path, label_smoothing_factor=0.2))
    given = {"input_ids": texts, "labels": texts}
    expected = model(**given, smoothing=0.2).loss
    torch.testing.assert_close(Trainer(model, args).compute_loss(model, {**given}), expected)


def test_smoothing_without_the_decoders_input_names_the_collator(tmp_path: Path) -> None:
    model = model_of("VaswaniForConditionalGeneration", {})
    args = Seq2SeqTrainingArguments(**arguments(tmp_path, label_smoothing_factor=0.2))
    with pytest.raises(ValueError, match=r"DataCollatorForSeq2Seq\(tokenizer, model=model\)"):
        Seq2SeqTrainer(model, args).compute_loss(model, {"input_ids": texts, "labels": texts})


@of_each_head
def test_a_configuration_can_ask_for_tuples(
    name: str, fields: dict[str, Any], labels: dict[str, torch.Tensor]
) -> None:
    model, given = model_of(name, fields).eval(), default_data_collator(rows(name, labels))
    expected = model(**given)
    model.config.return_dict = False
    found = model(**given)
    assert isinstance(found, tuple)
    for value, other in zip(found, expected.to_tuple(), strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, other)
    assert model(**given, return_dict=True).keys() == expected.keys()


@pytest.mark.parametrize(
    "name", ["VaswaniForCausalLM", "VaswaniForConditionalGeneration", "VaswaniForMaskedLM"]
)
def test_another_label_can_be_ignored(name: str) -> None:
    model = model_of(name, {})
    some = int(texts[0, 3])
    without = texts.masked_fill(texts == some, -100)
    # The tokens before a target stay.
    given = {"decoder_input_ids": texts} if name == "VaswaniForConditionalGeneration" else {}
    for options in ({}, {"smoothing": 0.0}):
        expected = model(texts, labels=without, **given, **options).loss
        found = model(texts, labels=texts, ignore_index=some, **given, **options).loss
        torch.testing.assert_close(found, expected)
        assert not torch.isclose(found, model(texts, labels=texts, **given, **options).loss)


# ------------------------------------------------------------------ a projection that is not plain


def hook(lm_head: Any) -> None:
    lm_head.register_forward_hook(lambda module, inputs, output: 3.0 * output)


def cut(lm_head: Any) -> None:
    prune.random_unstructured(lm_head, "weight", 0.5)


def replace(lm_head: Any) -> None:
    lm_head.forward = lambda states: -nn.functional.linear(states, lm_head.weight)


@pytest.mark.parametrize("change", [hook, cut, replace])
@pytest.mark.parametrize(
    "name", ["VaswaniForCausalLM", "VaswaniForConditionalGeneration", "VaswaniForMaskedLM"]
)
def test_changes_to_the_projection_change_the_fused_loss(name: str, change: Any) -> None:
    model = model_of(name, {"tie_word_embeddings": False})
    before = model(texts, labels=texts, smoothing=0.0).loss
    change(model.lm_head)
    for _ in range(2):  # a graph that is used twice would be an error
        loss = model(texts, labels=texts, smoothing=0.0).loss
        loss.backward()
    assert not torch.isclose(loss, before)
    torch.testing.assert_close(loss, model(texts, labels=texts).loss)


@pytest.mark.parametrize("kind", ["lora", "tokens"])
def test_an_adapter_of_scaled_embeddings_starts_and_merges_as_it_is(kind: str) -> None:
    peft = pytest.importorskip("peft")  # not there with the oldest versions
    adapter = {
        "lora": peft.LoraConfig(target_modules=["embed_tokens"]),
        "tokens": peft.TrainableTokensConfig(token_indices=[*range(3, 61)], target_modules=["embed_tokens"]),
    }[kind]
    model, data = tiny_model(share_encoder_decoder_embeddings=False, tie_word_embeddings=False), batch()
    expected = model(**data).loss
    adapted = peft.get_peft_model(model, adapter)
    torch.testing.assert_close(adapted(**data).loss, expected)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    trained = adapted.eval()(**data).loss
    assert not torch.isclose(trained, expected)
    torch.testing.assert_close(adapted.merge_and_unload()(**data).loss, trained)
