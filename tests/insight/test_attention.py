"""Attention maps hold the model's weights, for any model, kernel and tokenizer."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
)

from library_translators import save_translator
from toy_translation import SHAPE, toy_model, toy_tokenizer, toy_tokenizers
from vaswani import (
    Translator,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForSequenceClassification,
    VaswaniModel,
)
from vaswani.data.tokenization import save_tokenizers, train_tokenizer
from vaswani.errors import RunError, UserError
from vaswani.insight.attention import MAX_TOKENS, AttentionMap, load_attention_model, read_attention
from vaswani.insight.token_texts import TokenTexts

SOURCE, TARGET = "the big cat sees two dogs", "große Katze hört zwei Vögel"
TEXTS = ["one two three four", "five six seven eight"] * 3
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def one_stack(kind: str) -> tuple[Any, Any, str]:
    """A tiny model of one stack, its tokenizer, and the kind of its map."""
    purpose = "causal" if kind in ("gpt2", "vaswani_decoder", "mamba") else "masked"
    tokenizer = train_tokenizer(TEXTS, 290, purpose=purpose, token_types=kind == "bert")
    size = len(tokenizer)
    of_stack = {name: value for name, value in SHAPE.items() if name.startswith(("d_model", "dropout"))}
    models = {
        "bert": lambda: BertForSequenceClassification(BertConfig(vocab_size=size, **SIZES)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2)),
        "mamba": lambda: MambaForCausalLM(MambaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1)),
        "vaswani_encoder": lambda: VaswaniForSequenceClassification(
            VaswaniEncoderConfig(
                vocab_size=size, **of_stack, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24
            )
        ),
        "vaswani_decoder": lambda: VaswaniForCausalLM(
            VaswaniDecoderConfig(
                vocab_size=size, **of_stack, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=24
            )
        ),
    }
    return models[kind]().eval(), tokenizer, "decoder" if purpose == "causal" else "encoder"


def test_attention_of_a_translation_equals_that_of_one_forward_pass() -> None:
    """Without a target the model's own; cross-attention is of the steps that predict each token."""
    model, tokenizer, source = toy_model(), toy_tokenizer(), "one two three"
    maps = read_attention(model, tokenizer, source)
    text = Translator(model, tokenizer, num_beams=1)([source])[0]
    again = read_attention(model, tokenizer, source, text)
    other = read_attention(model, tokenizer, source, "9 8 7 6")
    ids = torch.tensor([tokenizer(source)["input_ids"]])
    target = tokenizer(text)["input_ids"]
    start = model.config.decoder_start_token_id
    output = model(
        input_ids=ids, decoder_input_ids=torch.tensor([[start, *target[:-1]]]), output_attentions=True
    )
    expected = [output.encoder_attentions, output.decoder_attentions, output.cross_attentions]
    assert [each.kind for each in maps] == ["encoder", "decoder", "cross"]
    for found, same, weights in zip(maps, again, expected, strict=True):
        torch.testing.assert_close(found.weights, torch.cat(weights))
        assert found.weights.dtype == torch.float32
        assert not found.weights.requires_grad
        torch.testing.assert_close(found.weights, same.weights)
    assert maps[2].queries[-1] == "</s>" == maps[2].keys[-1]
    assert maps[1].queries == ("<s>", *maps[2].queries[:-1])
    assert maps[2].words().queries == (*text.split(), "</s>")
    assert other[2].words().queries == ("9", "8", "7", "6", "</s>")


@pytest.mark.slow
def test_two_vocabularies(tmp_path: Path) -> None:
    source, target = toy_tokenizers(separate=True)
    toy_model(separate=True).save_pretrained(tmp_path)
    save_tokenizers(source, target, tmp_path)
    model, tokenizers = load_attention_model(tmp_path)
    maps = read_attention(model, tokenizers, "one two", "1 2")
    assert maps[0].words().keys == ("one", "two", "</s>")
    assert maps[2].words().queries == ("1", "2", "</s>")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["marian", "marian of two vocabularies", "fsmt", "nllb", "mbart", "t5"])
def test_translators_of_the_library(kind: str, tmp_path: Path) -> None:
    """With their languages and their targets' vocabulary; the kernel of the model stays."""
    model, tokenizer = load_attention_model(save_translator(kind, tmp_path))
    before = model.config._attn_implementation
    for target in (TARGET, None):
        maps = read_attention(model, tokenizer, SOURCE, target)
        for each in maps:
            torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))
        if target is not None:
            assert set(TARGET.split()) <= set(maps[2].words().queries)
            assert set(SOURCE.split()) <= set(maps[2].words().keys)
            assert (maps[1].weights == maps[1].weights.tril()).all()
    assert model.config._attn_implementation == before
    if kind == "nllb":
        assert (maps[0].keys[0], maps[2].queries[0]) == ("eng_Latn", "deu_Latn")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "vaswani_encoder", "vaswani_decoder"])
def test_models_of_one_stack(kind: str) -> None:
    model, tokenizer, map_kind = one_stack(kind)
    assert model.config._attn_implementation == "sdpa"
    (found,) = read_attention(model, tokenizer, TEXTS[0])
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    expected = torch.cat(model(input_ids=inputs["input_ids"], output_attentions=True).attentions)
    assert (found.kind, found.queries) == (map_kind, found.keys)
    torch.testing.assert_close(found.weights, expected.detach())
    assert found.words().keys[1:5] == tuple(TEXTS[0].split())


@pytest.mark.parametrize("kind", ["bert", "vaswani_encoder"])
def test_a_pair_of_texts(kind: str) -> None:
    model, tokenizer, _ = one_stack(kind)
    (found,) = read_attention(model, tokenizer, "one two", "three")
    assert found.words().keys == ("<s>", "one", "two", "</s>", "three", "</s>")
    inputs = tokenizer("one two", "three", return_tensors="pt")
    model.set_attn_implementation("eager")
    torch.testing.assert_close(
        found.weights, torch.cat(model(**inputs, output_attentions=True).attentions).detach()
    )


def test_words_add_keys_and_average_queries() -> None:
    texts = TokenTexts(("a", "b", "c"), ("ab", "c"), (0, 0, 1))
    weights = torch.tensor([[[[0.5, 0.3, 0.2], [0.1, 0.5, 0.4], [0.6, 0.3, 0.1]]]])
    tokens = AttentionMap("encoder", texts.tokens, texts.tokens, weights, texts, texts)
    words = tokens.words()
    assert (words.queries, words.keys) == (("ab", "c"), ("ab", "c"))
    torch.testing.assert_close(words.weights, torch.tensor([[[[0.7, 0.3], [0.9, 0.1]]]]))
    again = words.words()
    assert again.keys == words.keys
    assert torch.equal(again.weights, words.weights)


def test_threads_share_a_model() -> None:
    model, tokenizer, _ = one_stack("gpt2")
    expected = read_attention(model, tokenizer, TEXTS[0])[0].weights
    logits = model(**tokenizer(TEXTS[1], return_tensors="pt")).logits

    def call(number: int) -> None:
        if number % 2:
            torch.testing.assert_close(read_attention(model, tokenizer, TEXTS[0])[0].weights, expected)
        else:
            torch.testing.assert_close(model(**tokenizer(TEXTS[1], return_tensors="pt")).logits, logits)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(20)))


@pytest.mark.parametrize("text", ["", "  "])
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_empty_text_is_refused(side: str, text: str) -> None:
    texts = (text, "1") if side == "source" else ("one", text)
    with pytest.raises(UserError, match=rf"the {side} is empty; give a text"):
        read_attention(toy_model(), toy_tokenizer(), *texts)


def test_a_long_text_is_refused_with_the_limit() -> None:
    long = "one " * MAX_TOKENS
    for texts in ((long, None), ("one", long)):
        with pytest.raises(
            UserError, match=r"has [\d,]+ tokens, and attention is read for up to 1,024; shorten"
        ):
            read_attention(toy_model(), toy_tokenizer(), *texts)
    model, tokenizer, _ = one_stack("gpt2")
    model.config.max_position_embeddings = 8
    with pytest.raises(UserError, match=r"the text has .* up to 8; shorten it"):
        read_attention(model, tokenizer, long)


@pytest.mark.slow
def test_models_without_full_attention_weights_raise_an_error(tmp_path: Path) -> None:
    model, tokenizer, _ = one_stack("mamba")
    with pytest.raises(UserError, match="MambaForCausalLM returns no attention weights"):
        read_attention(model, tokenizer, "one")
    local = load_attention_model(save_translator("led", tmp_path))
    with pytest.raises(UserError, match=r"the shape \[1, 2, 10, 5\]; expected \[1, heads, 10, 10\]"):
        read_attention(*local, SOURCE, TARGET)
    base = VaswaniModel(toy_model().config)
    with pytest.raises(UserError, match="VaswaniModel is an encoder-decoder that does not generate"):
        read_attention(base, toy_tokenizer(), "one", "1")
    model, tokenizer, _ = one_stack("vaswani_decoder")
    with pytest.raises(UserError, match="reads one text; leave the target out"):
        read_attention(model, tokenizer, "one", "two")


def test_weights_that_are_not_finite_are_an_error() -> None:
    model = toy_model()
    model.model.encoder.layers[0].self_attn.q_proj.weight.data.fill_(float("nan"))
    with pytest.raises(RunError, match="not finite"):
        read_attention(model, toy_tokenizer(), "one", "1")
