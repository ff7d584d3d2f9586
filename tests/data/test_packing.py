"""Packed documents: labels, positions, and the same model outputs as for each document alone."""

import itertools

import pytest
import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from toy_texts import toy_documents
from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani.data.text.packing import DocumentCollator, PackingCollator
from vaswani.data.text.sequences import DocumentParts, PackedBlocks, make_sequences
from vaswani.data.tokenization import train_tokenizer

TEXTS = toy_documents(30, sentences=3)
TOKENIZER = train_tokenizer(TEXTS, 320, purpose="causal")
PAD, BEGIN, END = 0, 1, 2

SHAPE = {"vocab_size": 320, "pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
MODELS = {
    "ours": lambda: VaswaniForCausalLM(
        VaswaniDecoderConfig(
            **SHAPE, d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64
        )
    ),
    "sinusoidal": lambda: VaswaniForCausalLM(
        VaswaniDecoderConfig(
            **SHAPE,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=2,
            decoder_ffn_dim=64,
            position_embedding="sinusoidal",
        )
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SHAPE, n_embd=32, n_layer=2, n_head=2)),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    ),
}


def blocks(recipe) -> list[dict]:
    return list(make_sequences(Dataset.from_dict({"text": TEXTS}), TOKENIZER, recipe))


@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_loss_are_those_of_each_document_alone(kind):
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    batch = PackingCollator(PAD, BEGIN)(blocks(PackedBlocks(50))[-8:])  # the last row is padded
    assert (batch["input_ids"] == PAD).any()
    with torch.no_grad():
        packed = model(**batch, use_cache=False)  # with a cache, the library takes documents for one
        losses = []
        for row in range(8):
            starts = [*torch.nonzero(batch["position_ids"][row] == 0).flatten().tolist(), 50]
            for start, end in itertools.pairwise(starts):
                tokens = batch["input_ids"][row, start:end]
                if tokens[0] == PAD:
                    continue
                alone = model(tokens[None], use_cache=False)
                torch.testing.assert_close(
                    packed.logits[row, start:end], alone.logits[0], rtol=1e-4, atol=1e-5
                )
                losses.append(
                    torch.nn.functional.cross_entropy(alone.logits[0, :-1], tokens[1:], reduction="none")
                )
    assert len(losses) > 12
    torch.testing.assert_close(packed.loss, torch.cat(losses).mean(), rtol=1e-4, atol=1e-5)


def test_without_position_ids_packed_documents_attend_to_each_other():
    torch.manual_seed(0)
    model = MODELS["ours"]().eval()
    batch = PackingCollator(PAD, BEGIN)(blocks(PackedBlocks(50))[:4])
    with torch.no_grad():
        apart = model(**batch, use_cache=False).loss
        del batch["position_ids"]
        assert (model(**batch, use_cache=False).loss - apart).abs() > 1e-5


def test_positions_and_labels():
    rows = [{"input_ids": [9, 8, END, BEGIN, 7, 6, END, BEGIN, 5]}, {"input_ids": [BEGIN, 4, END]}]
    batch = PackingCollator(PAD, BEGIN)(rows)
    assert batch["input_ids"].tolist() == [[9, 8, 2, 1, 7, 6, 2, 1, 5], [1, 4, 2, 0, 0, 0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 1, 2, 3, 4, 5]]
    assert batch["labels"].tolist() == [
        [-100, 8, 2, -100, 7, 6, 2, -100, 5],
        [-100, 4, 2, -100, -100, -100, -100, -100, -100],
    ]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_parts_of_documents_come_with_a_mask():
    batch = DocumentCollator(PAD)([{"input_ids": [BEGIN, 4, 5, END]}, {"input_ids": [5, END]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 4, 5, END], [-100, END, -100, -100]]
    assert "position_ids" not in batch


def test_packing_keeps_the_same_label_tokens():
    packed = PackingCollator(PAD, BEGIN)(blocks(PackedBlocks(40)))
    parts = DocumentCollator(PAD)(blocks(DocumentParts(40)))
    # A block begins with what ends the one before it, a document with <s>: neither is a label.
    counts = [batch["labels"][batch["labels"] != -100].bincount(minlength=320) for batch in (packed, parts)]
    assert torch.equal(*counts)
    assert counts[0].sum() == sum(1 + len(TOKENIZER(text).input_ids) - 1 for text in TEXTS)
