"""The parts of the page that are computed while they are open: attention and sparse patterns."""

import re
from html import unescape

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from toy_labels import save_toy_decoder
from toy_translation import SHAPE, toy_model, toy_tokenizer
from vaswani import Translator, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.demo.language_model import CompletionView
from vaswani.demo.models import Prompter, open_model
from vaswani.demo.sparse import MIN_BLOCKS, show_pattern, sparse_patterns
from vaswani.demo.translation import TranslationView
from vaswani.demo.view import html_or_error
from vaswani.insight import figures
from vaswani.insight.attention import read_attention
from vaswani.insight.sparse_patterns import density
from vaswani.interop.sparsify import sparsify

SPARSE = {"sparse_block_size": 4, "sparse_window_blocks": 1}


def test_attention_is_that_of_the_translation_on_the_page() -> None:
    view = TranslationView("toy", Translator(toy_model(), toy_tokenizer()))
    found = view.attention("one\ntwo", "7 8 9")  # not what a search would find
    assert found[2].queries == ("7", "8", "9", "</s>")
    assert found[2].keys == ("one", "two", "</s>")
    expected = read_attention(view.model, toy_tokenizer(), "one two", "7 8 9")
    assert all(torch.equal(one.weights, other.weights) for one, other in zip(found, expected, strict=True))
    (best,) = view.translator(["one two"])
    assert "".join(view.attention("one two", "")[2].queries) == f"{''.join(best.split())}</s>"


def test_attention_of_a_completion_includes_it(tmp_path) -> None:
    prompter = open_model(save_toy_decoder(tmp_path / "causal"), device="cpu")
    assert isinstance(prompter, Prompter)
    (found,) = CompletionView("causal", prompter).attention("ann saw", " rome")
    assert found.queries[1:4] == ("ann", "saw", "rome")


def test_the_sparse_layers_of_a_model() -> None:
    kinds = {"encoder_layers": 2, "encoder_attention": ["full", "sparse"], "decoder_attention": "sparse"}
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, **kinds, **SPARSE}))
    assert sparse_patterns(model) == {
        "model.encoder.layers.1.self_attn": model.config.sparse_pattern("encoder", 1),
        "model.decoder.layers.0.self_attn": model.config.sparse_pattern("decoder", 0),
    }
    assert sparse_patterns(toy_model()) == sparse_patterns(None) == {}


def test_the_sparse_layers_of_a_model_of_the_library() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = sparsify(
        BertForSequenceClassification(BertConfig(vocab_size=20, **sizes)), block_size=4, window=1
    )
    assert [pattern.layer for pattern in sparse_patterns(model).values()] == [0, 1]


@pytest.mark.parametrize("tokens", [3, 100])
def test_the_picture_of_a_pattern_is_described(tokens: int) -> None:
    (pattern,) = sparse_patterns(toy_model(encoder_attention="sparse", **SPARSE)).values()
    html = unescape(show_pattern(pattern, tokens))
    blocks = -(-tokens // 4)
    drawn = max(blocks, MIN_BLOCKS)
    assert f"{tokens} tokens fill {blocks} of the blocks of 4 tokens" in html
    assert (f"the picture shows {drawn} blocks" in html) == (drawn != blocks)
    described = re.findall(r'alt="(.*?)"', html)
    assert len(described) == 2  # for light and dark pages
    assert f"over {drawn} blocks" in described[0]
    assert f"{100 * density(pattern, drawn):.1f} %" in described[0]


def test_without_matplotlib_the_page_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    (pattern,) = sparse_patterns(toy_model(encoder_attention="sparse", **SPARSE)).values()
    html = unescape(html_or_error(lambda: show_pattern(pattern, 9)))
    assert "drawing needs matplotlib: pip install 'vaswani[plots]'" in html
