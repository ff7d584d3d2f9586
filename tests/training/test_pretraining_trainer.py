"""The trainer of language models: what it measures, exactly, and that accumulation changes nothing."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
)

from toy_texts import toy_documents
from vaswani import (
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForPreTraining,
)
from vaswani.data.text.masking import MaskingCollator
from vaswani.data.text.packing import DocumentCollator, PackingCollator
from vaswani.data.text.sequences import (
    DocumentParts,
    PackedBlocks,
    SegmentPairs,
    SentenceSequences,
    make_sequences,
)
from vaswani.data.tokenization import byte_tokenizer, train_tokenizer
from vaswani.training.config.training_arguments import BaseTrainingArguments
from vaswani.training.runs.language_modelling import estimates
from vaswani.training.trainer import pretraining as module
from vaswani.training.trainer.pretraining import PretrainingTrainer

TEXTS = toy_documents(40)
MASKED = train_tokenizer(TEXTS, 320, purpose="masked", token_types=True)
CAUSAL = train_tokenizer(TEXTS, 320, purpose="causal")
BYTES = byte_tokenizer(purpose="causal")
SHAPE = {"vocab_size": 320, "d_model": 16, "dropout": 0.0, "attention_dropout": 0.0}
ENCODER = {**SHAPE, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
DECODER = {**SHAPE, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
LIBRARY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 320}
BERT = {**LIBRARY, "intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# Of each kind: the model, its tokenizer, the sequences and the collator.
KINDS = {
    "masked": (
        lambda: VaswaniForMaskedLM(VaswaniEncoderConfig(**ENCODER)),
        MASKED,
        SentenceSequences(30),
        MaskingCollator(MASKED),
    ),
    "pairs": (
        lambda: VaswaniForPreTraining(VaswaniEncoderConfig(**ENCODER)),
        MASKED,
        SegmentPairs(30),
        MaskingCollator(MASKED),
    ),
    "causal": (
        lambda: VaswaniForCausalLM(VaswaniDecoderConfig(**DECODER)),
        CAUSAL,
        PackedBlocks(30),
        PackingCollator(0, 1),
    ),
    "parts": (
        lambda: VaswaniForCausalLM(VaswaniDecoderConfig(**DECODER)),
        CAUSAL,
        DocumentParts(30),
        DocumentCollator(0),
    ),
    "bytes": (
        lambda: VaswaniForCausalLM(VaswaniDecoderConfig(**{**DECODER, "vocab_size": len(BYTES)})),
        BYTES,
        PackedBlocks(30),
        PackingCollator(0, 1),
    ),
    "bert": (
        lambda: BertForMaskedLM(BertConfig(**BERT)),
        MASKED,
        SentenceSequences(30),
        MaskingCollator(MASKED),
    ),
    "bert_pairs": (
        lambda: BertForPreTraining(BertConfig(**BERT)),
        MASKED,
        SegmentPairs(30),
        MaskingCollator(MASKED),
    ),
    "gpt2": (
        lambda: GPT2LMHeadModel(
            GPT2Config(**LIBRARY, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1)
        ),
        CAUSAL,
        PackedBlocks(30),
        PackingCollator(0, 1),
    ),
    "bart": (  # whose own loss does not shift the labels
        lambda: BartForCausalLM(
            BartConfig(
                vocab_size=320,
                d_model=16,
                decoder_layers=1,
                decoder_attention_heads=2,
                decoder_ffn_dim=32,
                dropout=0.0,
            )
        ),
        CAUSAL,
        DocumentParts(30),
        DocumentCollator(0),
    ),
}
PAIRS = {"pairs", "bert_pairs"}


def make_trainer(folder: Path, kind: str, texts: list[str] = TEXTS, **options) -> PretrainingTrainer:
    make, tokenizer, recipe, collator = KINDS[kind]
    rows = make_sequences(Dataset.from_dict({"text": texts}), tokenizer, recipe)
    arguments = {"learning_rate": 0.1, "warmup_steps": 2, "max_tokens_per_batch": 120, "use_cpu": True}
    arguments |= {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    torch.manual_seed(0)
    return PretrainingTrainer(
        model=make(),
        args=BaseTrainingArguments(output_dir=str(folder), **{**arguments, **options}),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collator,
        processing_class=tokenizer,
    )


def weights(trainer: PretrainingTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


# ----------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_whole_set(tmp_path, kind):
    """Against the logits, and the model's own loss, of all rows as one batch."""
    trainer = make_trainer(tmp_path, kind)
    assert len(trainer.get_eval_dataloader()) > 3
    scores = trainer.evaluate()
    batch = KINDS[kind][3](list(trainer.eval_dataset))
    is_causal = "bits_per_byte" in str(scores)
    with torch.no_grad():
        outputs = trainer.model.eval()(**batch, **({"use_cache": False} if is_causal else {}))
    if kind != "bart":
        assert scores["eval_loss"] == pytest.approx(outputs.loss.item(), rel=1e-4)
    logits = outputs.prediction_logits if kind in PAIRS else outputs.logits
    labels = batch["labels"]
    if is_causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    found, kept = logits.argmax(-1), labels != -100
    assert scores["eval_accuracy"] == pytest.approx(
        100 * (found == labels)[kept].float().mean().item(), rel=1e-4
    )
    nats = torch.nn.functional.cross_entropy(logits[kept], labels[kept]).item()
    assert scores["eval_perplexity"] == pytest.approx(math.exp(nats), rel=1e-3)
    if kind in PAIRS:
        relation = outputs.seq_relationship_logits.argmax(-1) == batch["next_sentence_label"]
        assert scores["eval_next_sentence_accuracy"] == pytest.approx(100 * relation.float().mean().item())
    if is_causal:
        # Each document is all of its bytes, and </s>: nothing is left out and nothing counted twice.
        num_bytes = sum(len(text.encode()) for text in TEXTS)
        bits = nats * kept.sum().item() / math.log(2)
        assert scores["eval_bits_per_byte"] == pytest.approx(bits / num_bytes, rel=1e-4)


@pytest.mark.parametrize("kind", ["causal", "parts", "bytes"])
def test_bytes_of_texts_in_any_script_are_counted(tmp_path, kind):
    texts = ["Ωmega éclair 日本語 😀!\n\n", "  a", "\ttab", "x" * 100]
    trainer = make_trainer(tmp_path, kind, texts)
    trainer.evaluate()
    assert trainer.sums[:, module.Sums._fields.index("bytes")].sum() == sum(map(len, map(str.encode, texts)))


def test_a_packed_text_is_as_likely_as_its_documents(tmp_path):
    """Bits per byte do not depend on packing, but for documents that are cut into blocks."""
    texts = [text for text in TEXTS if len(CAUSAL(text).input_ids) < 29]
    packed = make_trainer(tmp_path, "causal", texts)
    parts = make_trainer(tmp_path, "parts", texts)
    nats = []
    for trainer in (packed, parts):
        trainer.evaluate()
        nats.append(trainer.sums.sum(0))
    assert nats[0][1] == nats[1][1]  # as many labels
    assert nats[0][3] == nats[1][3]  # as many bytes


def test_evaluation_in_parts_is_evaluation_at_once(tmp_path, monkeypatch):
    whole = make_trainer(tmp_path, "causal").evaluate()
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 1)
    parts = make_trainer(tmp_path, "causal").evaluate()
    for name in ("eval_loss", "eval_bits_per_byte", "eval_accuracy"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-6)


def test_every_evaluation_uses_the_same_masks(tmp_path):
    trainer = make_trainer(tmp_path, "masked")
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_intervals_contain_the_scores(tmp_path):
    trainer = make_trainer(tmp_path, "pairs", learning_rate=1e-2, max_steps=20)
    trainer.train()
    scores = trainer.evaluate()
    found = estimates(trainer)
    assert found.keys() == {"loss", "perplexity", "accuracy", "next_sentence_accuracy"}
    for name, estimate in found.items():
        assert estimate.low < estimate.value < estimate.high
        assert estimate.value == scores[f"eval_{name}"]


# ------------------------------------------------------------------------------------------------- training


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - PAIRS))
def test_one_row_in_eight_steps_equals_eight_rows_in_one(tmp_path, kind):
    options = {"optim": "sgd", "max_steps": 3, "max_grad_norm": 0.0}
    texts = ["The dog sleeps. The dog sings. The cat runs home."] * 2 + TEXTS[:6]
    whole = make_trainer(tmp_path, kind, texts, max_tokens_per_batch=10_000, **options)
    rows = len(whole.train_dataset)
    parts = make_trainer(
        tmp_path, kind, texts, max_tokens_per_batch=30, gradient_accumulation_steps=rows, **options
    )
    assert len(whole.get_train_dataloader()) == 1
    assert len(parts.get_train_dataloader()) == rows
    start = weights(whole)
    whole.train()
    parts.train()
    assert (weights(whole) - start).abs().max() > 0.001
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_equals_the_definition(tmp_path, kind):
    """The loss, of a batch that is an update or a quarter of one, is computed again from all logits."""
    trainer = make_trainer(tmp_path, kind)
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        outputs = trainer.model(**inputs, **({"use_cache": False} if trainer.is_causal else {}))
        logits = outputs.prediction_logits if kind in PAIRS else outputs.logits
        labels = batch["labels"]
        if trainer.is_causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if kind in PAIRS:
            relation = outputs.seq_relationship_logits
            expected += torch.nn.functional.cross_entropy(relation, batch["next_sentence_label"])
        loss = trainer.compute_loss(trainer.model, dict(batch))
        items = 4 * (labels != -100).sum()
        part = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=items)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(part, expected / 4, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["masked", "causal", "pairs"])
def test_our_models_compute_the_loss_without_all_logits(tmp_path, kind):
    trainer = make_trainer(tmp_path, kind)
    batch = next(iter(trainer.get_train_dataloader()))
    _, outputs = trainer.compute_loss(trainer.model, dict(batch), return_outputs=True)
    assert (outputs.prediction_logits if kind in PAIRS else outputs.logits) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_training_reduces_the_loss(tmp_path, kind):
    trainer = make_trainer(tmp_path, kind, learning_rate=1e-2, max_steps=30)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.9 * before


def test_each_epoch_masks_other_tokens(tmp_path):
    trainer = make_trainer(tmp_path, "masked", num_train_epochs=2)
    seen: list[np.ndarray] = []
    collator = MaskingCollator(MASKED)

    class Spy:
        set_epoch = collator.set_epoch

        def __call__(self, rows):
            batch = collator(rows)
            seen.append(batch["labels"].numpy())
            return batch

    trainer.train_data_collator = Spy()
    trainer.train()
    half = len(seen) // 2
    labels = [
        sorted(tuple(row[row != -100]) for batch in epoch for row in batch)
        for epoch in (seen[:half], seen[half:])
    ]
    assert len(labels[0]) == len(labels[1]) == len(trainer.train_dataset)
    assert labels[0] != labels[1]
