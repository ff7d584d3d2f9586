"""Score and generate continuations of prompts with a causal language model.

Prompt and answer are encoded as one text, as in training, and then split: the context is the common prefix
of the tokens of the prompt, alone and with each answer; all later tokens are scored. So a space may be at the
end of the prompt or at the beginning of the answers: if it forms a token with the next characters, that token
is scored, and all answers to a prompt are scored from the same position.

Results do not depend on the batch, except for rounding.

R rows of a batch · T tokens of the longest · N tokens of an answer · V vocabulary
"""

from __future__ import annotations

import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError, check_positive
from vaswani.inference.batches import batches, within_memory
from vaswani.inference.decoding import position_limit
from vaswani.inference.sampling import Sampling, SeededSampling
from vaswani.inference.translate.finite_scores import FiniteScores, check_finite_scores
from vaswani.interop.attention_interface import IMPLEMENTATION

TokenIds = tuple[int, ...]

_ROUNDING = 1e-3  # relative to the change that a token makes at its own position


@dataclass(frozen=True)
class Continuation:
    """A prompt with an answer.

    Args:
        token_ids: the tokens of both.
        start: the position of the first scored token, at least 1.
    """

    token_ids: TokenIds
    start: int

    @property
    def inputs(self) -> TokenIds:
        """The model's input: all tokens but the last, which predicts nothing."""
        return self.token_ids[:-1]

    @property
    def answer_ids(self) -> TokenIds:
        """The scored tokens."""
        return self.token_ids[self.start :]


class Draft(NamedTuple):
    """A prompt to continue.

    Args:
        prompt: its tokens, at least one.
        max_new_tokens: maximum tokens of the continuation.
        seed: the seed for drawing tokens.
    """

    prompt: TokenIds
    max_new_tokens: int
    seed: tuple[int, ...] = ()


class LanguageModel:
    """A causal language model of transformers with its tokenizer.

    Args:
        model: a causal model; it is put into evaluation mode.
        tokenizer: its leading special tokens begin every prompt. Its trailing special tokens are left out,
            because an answer follows.
        max_tokens_per_batch: maximum tokens of a batch, with padding and generated tokens. A longer text
            forms its own batch.

    `positions` is the maximum length of the model (`max_position_embeddings`, the trained length of rotary
    positions), or None if there is no limit.

    Raises:
        UserError: the model is not causal, or `max_tokens_per_batch` is less than 1.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens_per_batch: int = 8192
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_tokens_per_batch = max_tokens_per_batch
        self.positions = position_limit(model)
        self._texts = TextCodec(tokenizer)
        self._leading = self._texts.frame().leading
        self._forward_arguments = inspect.signature(model.forward).parameters
        check_causal(model)

    def encode_prompt(self, prompt: str) -> TokenIds:
        """Return the tokens of a prompt; raise a UserError if there are none."""
        (token_ids,) = self._encode([prompt])
        if not token_ids:
            raise UserError("the prompt is empty; give a text to continue")
        return token_ids

    def encode_answers(self, prompt: str, answers: Sequence[str]) -> list[Continuation]:
        """Return the prompt with each answer, all scored from the same position.

        Raises:
            UserError: the answers have no context, two answers have equal tokens, or one has no tokens.
        """
        encoded = self._encode([prompt, *(prompt + answer for answer in answers)])
        start = _common_length(encoded)
        if start == 0:
            raise UserError(
                f"the answers have no context to predict them from: the prompt {prompt!r} is empty, or forms "
                "one token with them; put a text in front, such as a description"
            )
        whole = encoded[1:]
        if len(set(whole)) < len(whole) or any(len(token_ids) == start for token_ids in whole):
            raise UserError(
                f"the tokenizer does not distinguish these answers: {', '.join(map(repr, answers))}"
            )
        return [Continuation(token_ids, start) for token_ids in whole]

    def log_probs(
        self, continuations: Sequence[Continuation], progress: Callable[[int], object] | None = None
    ) -> list[float]:
        """Return log P(answer | context) of each: the sum of the natural log-probabilities of its tokens.

        Args:
            continuations: in any order; those that differ only in their last token share a forward pass.
            progress: is called with the number of scored answers of each batch.

        Raises:
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        places = defaultdict(list)  # the answers that each input predicts
        for place, continuation in enumerate(continuations):
            places[continuation.inputs].append(place)
        found = [0.0] * len(continuations)
        for batch in batches({inputs: len(inputs) for inputs in places}, self.max_tokens_per_batch):
            scored = [place for inputs in batch for place in places[inputs]]
            with within_memory("texts", len(batch), len(batch[0])):
                scores = self._score(batch, [continuations[place] for place in scored])
            for place, score in zip(scored, scores, strict=True):
                found[place] = score
            if progress:
                progress(len(scored))
        check_finite_scores(all(map(math.isfinite, found)), self.model)
        return found

    def write(
        self,
        prompts: Sequence[TokenIds],
        max_new_tokens: int,
        stop: Sequence[str] = (),
        progress: Callable[[int], object] | None = None,
    ) -> list[str]:
        """Continue each prompt by greedy search.

        Args:
            prompts: the tokens of the prompts.
            max_new_tokens: maximum tokens of each continuation.
            stop: texts that end a continuation, like the model's end token; they are not included.
            progress: is called with the number of continuations of each batch.

        Raises:
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        drafts = [Draft(prompt, max_new_tokens) for prompt in prompts]
        continuations = self.continue_drafts(drafts, stop=stop, progress=progress)
        return [_before(text, stop) for text in self._decode(continuations)]

    def continue_drafts(
        self,
        drafts: Sequence[Draft],
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        progress: Callable[[int], object] | None = None,
    ) -> list[TokenIds]:
        """Return the tokens that follow each prompt, without the end token; equal drafts are continued once.

        Args:
            drafts: drafts with equal prompt lengths or equal `max_new_tokens`, because a batch needs
                positions for its longest prompt plus its largest `max_new_tokens`.
            sampling: how tokens are drawn, with the seed of each draft; None for greedy search.
            stop: texts that end a continuation, like the model's end token; they may be included.
            progress: is called with the number of continuations of each batch.

        Raises:
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        found: dict[Draft, TokenIds] = {}
        times = Counter(drafts)
        # Left padding would shift positions, and the blocks of sparse attention.
        shifts = "position_ids" not in self._forward_arguments or _is_sparse(self.model.config)
        tokens = {draft: len(draft.prompt) + draft.max_new_tokens for draft in times}
        for batch in batches(tokens, self.max_tokens_per_batch, equal=shifts):
            with within_memory("texts", len(batch), len(batch[0].prompt)):
                continuations = self._generate(batch, sampling, stop)
            found.update(zip(batch, continuations, strict=True))
            if progress:
                progress(sum(times[draft] for draft in batch))
        return [found[draft] for draft in drafts]

    def _encode(self, texts: list[str]) -> list[TokenIds]:
        encoded = self._texts.token_ids(texts, add_special_tokens=False)
        return [(*self._leading, *token_ids) for token_ids in encoded]

    @torch.inference_mode()
    def _score(self, batch: list[TokenIds], answers: list[Continuation]) -> list[float]:
        """Return the log-probability of each answer from the inputs of a batch [R, T]."""
        device = self.model.device
        input_ids, attention_mask = self._padded(batch, "right")  # answers do not see padding there
        first = min(answer.start for answer in answers) - 1  # earlier positions predict no answer
        logits = self._logits(input_ids, attention_mask, input_ids.shape[1] - first)
        row_of = {inputs: row for row, inputs in enumerate(batch)}
        precision = torch.promote_types(logits.dtype, torch.float32)
        scores = []
        for answer in answers:
            predictions = slice(answer.start - 1 - first, len(answer.inputs) - first)
            predicted = logits[row_of[answer.inputs], predictions]  # [N, V]
            log_probs = predicted.log_softmax(dim=1, dtype=precision)
            targets = torch.tensor(answer.answer_ids, device=device)
            scores.append(log_probs.gather(1, targets[:, None]).sum())
        return torch.stack(scores).tolist()

    def _padded(self, rows: Sequence[TokenIds], side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and their attention mask, padded on a side: int64 [R, T]."""
        tokens = [torch.tensor(row, device=self.model.device) for row in rows]
        masks = [torch.ones_like(row) for row in tokens]
        return pad_sequence(tokens, True, padding_side=side), pad_sequence(masks, True, padding_side=side)

    def _logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, last: int) -> torch.Tensor:
        """Return the logits of the last positions: [R, last, V]; most models can skip the others."""
        options = {"logits_to_keep": last, "use_cache": False}
        known = {name: value for name, value in options.items() if name in self._forward_arguments}
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, **known).logits
        return logits[:, -last:]

    @torch.inference_mode()
    def _generate(self, batch: list[Draft], sampling: Sampling | None, stop: Sequence[str]) -> list[TokenIds]:
        # Padding is on the left, so that generated tokens follow prompts.
        input_ids, attention_mask = self._padded([draft.prompt for draft in batch], "left")
        length, most = input_ids.shape[1], max(draft.max_new_tokens for draft in batch)
        finite = FiniteScores()
        processors = LogitsProcessorList([finite])
        if sampling is not None:
            processors.append(SeededSampling([draft.seed for draft in batch], most, sampling, length))
        sequences = self.model.generate(  # [R, T + at most max_new_tokens]
            input_ids=input_ids,
            attention_mask=attention_mask,
            num_beams=1,
            do_sample=False,
            use_cache=True,  # training may have disabled it in the configuration
            max_new_tokens=None,
            max_length=length + most,
            forced_eos_token_id=None,  # some configurations force it at the end
            pad_token_id=self.tokenizer.pad_token_id or 0,
            stopping_criteria=StoppingCriteriaList([_StopTexts(self._written, stop, length)] if stop else []),
            logits_processor=processors,
        )
        finite.check(self.model)
        continuations = self._until_end(sequences[:, length:])
        return [row[: draft.max_new_tokens] for row, draft in zip(continuations, batch, strict=True)]

    def _written(self, sequences: torch.Tensor) -> list[str]:
        """Return the texts of tokens [R, N], up to the first end token of each."""
        return self._decode(self._until_end(sequences))

    def _decode(self, sequences: Sequence[TokenIds]) -> list[str]:
        return self._texts.decode([list(row) for row in sequences])

    def _until_end(self, sequences: torch.Tensor) -> list[TokenIds]:
        """Return the rows of tokens [R, N] up to the first end token of each."""
        end_ids = self.model.generation_config.eos_token_id
        end_ids = torch.tensor([] if end_ids is None else end_ids, dtype=torch.int64, device=sequences.device)
        ended = torch.isin(sequences, end_ids).cumsum(dim=1) > 0
        return [tuple(row[~end].tolist()) for row, end in zip(sequences, ended, strict=True)]


class _StopTexts(StoppingCriteria):
    """Ends a row once its continuation contains one of the texts."""

    def __init__(self, decode: Callable[[torch.Tensor], list[str]], texts: Sequence[str], prompt_length: int):
        self.decode = decode
        self.texts = texts
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return which rows have ended: bool [R]."""
        written = self.decode(input_ids[:, self.prompt_length :])
        ended = [_before(text, self.texts) != text for text in written]
        return torch.tensor(ended, device=input_ids.device)


def _before(text: str, stop: Sequence[str]) -> str:
    """Return the part of a text before the first of the stop texts."""
    return text[: min((text.find(end) for end in stop if end in text), default=len(text))]


def _common_length(sequences: Sequence[TokenIds]) -> int:
    """Return the length of the common prefix."""
    alike = (len(set(tokens)) == 1 for tokens in zip(*sequences, strict=False))
    return sum(takewhile(bool, alike))


@torch.inference_mode()
def check_causal(model: PreTrainedModel) -> None:
    """Raise a UserError if a prediction depends on the predicted token.

    The model is run, because a configuration does not always say whether the model is causal.
    """
    pairs = torch.tensor([[0, 1], [0, 2]], device=model.device)
    logits = model(input_ids=pairs, attention_mask=torch.ones_like(pairs)).logits  # [2, 2, V]
    before, at = (logits[0] - logits[1]).abs().amax(dim=1).tolist()
    if before > _ROUNDING * at:
        raise UserError(
            f"{type(model).__name__} sees the tokens that it predicts; give a causal model "
            "such as 'vaswani_decoder', 'gpt2' or 'llama'"
        )


def _is_sparse(config: PreTrainedConfig) -> bool:
    """Return whether layers have sparse attention, in a vaswani model or added to another model."""
    ours = getattr(config, "decoder_attention", "full")  # one value for all layers, or one for each
    return "sparse" in ours or config._attn_implementation == IMPLEMENTATION
