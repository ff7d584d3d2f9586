"""The views of language models: causal models complete a text, masked models fill in masked words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vaswani.data.text_codec import TextCodec
from vaswani.demo.html_parts import table, token_list
from vaswani.demo.models import MaskedWord, MaskFiller
from vaswani.demo.view import View, ViewAnswer, check_length
from vaswani.errors import UserError
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.language_model import Continuation, Draft
from vaswani.inference.position_limits import DEFAULT_LENGTH
from vaswani.inference.prompt.prompting import Prompter
from vaswani.insight.attention import AttentionMap, read_attention

if TYPE_CHECKING:
    from gradio import Slider, Textbox

SAMPLES = 3
TOP_K = 5  # words for each mask


class CompletionView(View):
    """Shows how a causal language model continues a text, by greedy search and by samples."""

    verb = "Complete"
    text_label = "Beginning"
    answer_label = "Completion"

    def __init__(self, name: str, prompter: Prompter):
        self.language_model = prompter.language_model
        super().__init__(name, TextCodec(self.language_model.tokenizer), self.language_model.model)

    def controls(self) -> list[Slider | Textbox]:
        """Return the inputs for the length of completions and the temperature of the samples."""
        import gradio as gr

        return [
            gr.Slider(1, 200, value=30, step=1, label="New tokens"),
            gr.Slider(0.1, 2, value=0.8, step=0.1, label="Temperature of the samples"),
        ]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt, which has no end token."""
        return list(self.language_model.encode_prompt(text).token_ids)

    def attention(self, text: str, answer: str, *values: Any) -> tuple[AttentionMap, ...]:
        """Return the attention of the text and its completion."""
        return read_attention(self.model, self.codec.tokenizer, text + answer)

    def answer(self, text: str, new_tokens: int, temperature: float) -> ViewAnswer:
        """Return the greedy completion, and the samples with their log-probabilities."""
        prompt = self.language_model.encode_prompt(text)
        positions = self.language_model.positions or DEFAULT_LENGTH
        if len(prompt.token_ids) + new_tokens - 1 > positions:
            raise UserError(
                f"the text has {len(prompt.token_ids):,} tokens, and with {new_tokens:,} new ones the model "
                f"reads at most {max(0, positions - new_tokens + 1):,}; shorten it, or ask for fewer new ones"
            )
        drafts = [Draft(prompt, new_tokens, (seed,)) for seed in range(SAMPLES)]
        found = self.language_model.continue_drafts(drafts[:1])
        found += self.language_model.continue_drafts(drafts, GenerationOptions(temperature=temperature))
        whole = [
            Continuation((*prompt.token_ids, *token_ids), len(prompt.token_ids))
            for token_ids in found
            if token_ids
        ]
        scores = iter(self.language_model.log_probs(whole))
        asked = [drafts[0], *drafts]
        texts = [*map(self.language_model.before_stop, self.language_model.texts_of(asked, found))]
        ways = ["most probable words", *["drawn"] * SAMPLES]
        rows = [
            (way, completion, next(scores) if token_ids else 0.0)
            for way, completion, token_ids in zip(ways, texts, found, strict=True)
        ]
        return ViewAnswer(
            texts[0],
            table("Completions", ["words", "text", "log P"], rows)
            + token_list("Beginning", self.codec, prompt.token_ids),
        )


class MaskView(View):
    """Shows the most probable words for each mask of a text."""

    verb = "Fill in"
    answer_label = "Text with the most probable words"

    def __init__(self, name: str, filler: MaskFiller):
        super().__init__(name, filler.codec, filler.model)
        self.filler = filler
        self.mask: Any = filler.tokenizer.mask_token
        self.text_label = f"Text with {self.mask} for each word to fill in"  # type: ignore[misc]

    def answer(self, text: str) -> ViewAnswer:
        """Return the text with the most probable word for each mask, and tables of other words."""
        if self.mask not in text:
            raise UserError(f"the text has no {self.mask}; write it where the model should fill in a word")
        token_ids = self.encode(text)
        check_length(len(token_ids), self.filler.max_length)
        of_masks = self.filler(text, TOP_K)
        best = (words[0] for words in of_masks)
        masks = re.compile(rf"(\s*){re.escape(self.mask)}")
        filled = masks.sub(lambda found: _filled(found, next(best, None)), text)
        has_text_before = (found.start() > 0 for found in masks.finditer(text))
        tables = [
            table(f"Mask {number}", ["word", "probability"], _rows(words, marks_parts=marks_parts))
            for number, (words, marks_parts) in enumerate(zip(of_masks, has_text_before, strict=False), 1)
        ]
        return ViewAnswer(filled, "".join(tables) + token_list("Text", self.codec, token_ids))


def _filled(found: re.Match[str], word: MaskedWord | None) -> str:
    """Return the word that replaces a mask and the blanks before it, without them if it continues a word."""
    if word is None:  # the text has more masks than the model has read
        return found[0]
    return word.text if word.continues else found[1] + word.text


def _rows(words: list[MaskedWord], *, marks_parts: bool) -> list[tuple[str, float]]:
    """Return words and probabilities; "…" marks a part that continues the word before the mask."""
    return [("…" * (marks_parts and word.continues) + word.text, word.probability) for word in words]
