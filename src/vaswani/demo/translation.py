"""The views of encoder-decoders: the translation or summary of a text, and the n-best list with scores."""

from __future__ import annotations

from typing import Any

from torch import nn

from vaswani.demo.html_parts import table, token_list
from vaswani.demo.view import View, ViewAnswer, check_length
from vaswani.errors import UserError
from vaswani.inference.inputs import on_one_line
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.translation import Translator
from vaswani.insight.attention import AttentionMap, read_attention


class TranslationView(View):
    """Shows the hypotheses of a translator, one per beam."""

    verb = "Translate"
    text_label = "Text"
    answer_label = "Translation"

    def __init__(self, name: str, translator: Translator):
        has_model = isinstance(translator.engine, TorchEngine) and isinstance(translator.model, nn.Module)
        super().__init__(name, translator.sides.sources, translator.model if has_model else None)
        self.translator = translator

    def read(self, text: str) -> str:
        """Return the text that the model reads: one line, as of `vaswani translate`."""
        return on_one_line(text.strip())

    def attention(self, text: str, answer: str, *values: Any) -> tuple[AttentionMap, ...]:
        """Return the attention of the encoder, of the decoder, and from the translation to the text."""
        tokenizers = self.codec.tokenizer, self.translator.sides.targets.tokenizer
        return read_attention(self.model, tokenizers, self.read(text), answer or None)

    def answer(self, text: str) -> ViewAnswer:
        """Return the best translation, with all hypotheses and the tokens of both sides."""
        sides = self.translator.sides
        text = self.read(text)
        source = self.encode(text)
        limits = [limit for limit in (sides.max_source_length, sides.positions) if limit is not None]
        check_length(len(source), min(limits, default=None))
        (translation,) = self.translator.translate([text], n_best=self.translator.options.num_beams)
        if translation.problem:
            raise UserError(translation.problem)
        rows: Any = [(each.text, each.score, each.log_prob) for each in translation.hypotheses]
        (target,) = sides.targets.token_ids([translation.text])
        return ViewAnswer(
            translation.text,
            table("Hypotheses", ["text", "score", "log P"], rows)
            + token_list("Text", self.codec, source)
            + token_list(self.answer_label, sides.targets, target),
        )


class SummaryView(TranslationView):
    """A `TranslationView` of documents, with the labels of summarization."""

    verb = "Summarize"
    answer_label = "Summary"

    def read(self, text: str) -> str:
        """Return the document that the model reads, with its lines, as of `vaswani summarize`."""
        return text.strip()
