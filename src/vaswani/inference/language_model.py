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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from vaswani.data.text.chats import template_token_ids
from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError, check_positive, one_line
from vaswani.inference.batches import batches, padded, within_memory
from vaswani.inference.continuing import (
    BeginWithSpace,
    ContinuationTexts,
    Prompt,
    StopTexts,
    TokenIds,
    before_stop,
    counts_prompts,
    has_dynamic_positions,
    reads_padding,
    tokens_after_space,
)
from vaswani.inference.finite_scores import FiniteScores, check_finite_scores
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.position_limits import token_limit
from vaswani.inference.sampling import SeededSampling
from vaswani.inference.streaming import TokenStream

GREEDY = GenerationOptions()
# Neutral values for settings of a generation_config.json that do not suit one continuation of each prompt.
_PLAIN_SEARCH: dict[str, Any] = {
    "forced_eos_token_id": None,
    "max_time": None,  # seconds, which depend on the machine and on the batch
    "num_return_sequences": 1,
    "prompt_lookup_num_tokens": None,
    "return_dict_in_generate": False,
    "stop_strings": None,  # see `StopTexts`
}
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
    """A prompt with the limits of its continuation.

    Args:
        prompt: the prompt.
        max_new_tokens: maximum tokens of the continuation.
        seed: the seed for drawing tokens.
    """

    prompt: Prompt
    max_new_tokens: int
    seed: tuple[int, ...] = ()

    def followed_by(self, token_ids: TokenIds) -> Continuation:
        """Return the prompt with its continuation, to be scored."""
        return Continuation((*self.prompt.token_ids, *token_ids), len(self.prompt.token_ids))


class LanguageModel:
    """A causal language model of transformers with its tokenizer.

    Args:
        model: a causal model; it is put into evaluation mode.
        tokenizer: its leading special tokens begin every prompt. Its trailing special tokens are left out,
            because an answer follows.
        max_tokens_per_batch: maximum tokens of a batch, with padding and generated tokens. A longer text
            forms its own batch.

    Attributes:
        positions: the maximum length of the model (`max_position_embeddings`, the trained length of rotary
            positions), or None if there is no limit.
        leading: the special tokens that begin every prompt.

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
        self.positions = token_limit(model)
        self._texts = TextCodec(tokenizer)
        self.leading = self._texts.frame().leading
        self._forward_arguments = inspect.signature(model.forward).parameters
        check_causal(model)

    def encode(self, texts: Sequence[str], *, rendered: bool = False) -> list[Prompt]:
        """Return texts as prompts, after the leading special tokens, as in training with completions.

        White space at the end of a text may be tokenized differently before a word; then the prompt has the
        tokens from before a word. An empty text may have no tokens.

        Args:
            texts: the texts.
            rendered: a chat template wrote the texts, with all special tokens.
        """
        prompts = [Prompt(token_ids) for token_ids in self._token_ids(texts, rendered)]
        spaced = [place for place, text in enumerate(texts) if text[-1:].isspace()]
        followed = self._token_ids([f"{texts[place]}a" for place in spaced], rendered)
        before = [token_ids[:-1] for token_ids in followed]
        decoded = zip(self._decode(before), self._decode(followed), strict=True)
        for place, token_ids, (shorter, longer) in zip(spaced, before, decoded, strict=True):
            last = longer.removeprefix(shorter)  # what the last token adds
            if token_ids and last in ("a", " a"):
                prompts[place] = Prompt(token_ids, before_space=last == " a")
        return prompts

    def encode_prompt(self, prompt: str) -> Prompt:
        """Return a text as a prompt; raise a UserError if the tokenizer gives no tokens for it."""
        (encoded,) = self.encode([prompt])
        if not encoded.token_ids:
            raise UserError("the prompt is empty; give a text to continue")
        return encoded

    def encode_answers(self, prompt: str, answers: Sequence[str]) -> list[Continuation]:
        """Return the prompt with each answer, all scored from the same position.

        Raises:
            UserError: the answers have no context, two answers have equal tokens, or one has no tokens.
        """
        encoded = self._token_ids([prompt, *(prompt + answer for answer in answers)])
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
        lengths = {inputs: len(inputs) for inputs in places}
        equal = has_dynamic_positions(self.model.config)
        for batch in batches(lengths, self.max_tokens_per_batch, equal=equal):
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
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        stop: Sequence[str] = (),
        progress: Callable[[int], object] | None = None,
    ) -> list[str]:
        """Continue each prompt by greedy search.

        Args:
            prompts: the prompts (see `encode`).
            max_new_tokens: maximum tokens of each continuation.
            stop: texts that end a continuation, like the model's end token; they are not included.
            progress: is called with the number of continuations of each batch.

        Raises:
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        drafts = [Draft(prompt, max_new_tokens) for prompt in prompts]
        continuations = self.continue_drafts(drafts, stop=stop, progress=progress)
        return [self.before_stop(text, stop) for text in self.texts_of(drafts, continuations)]

    def continue_drafts(
        self,
        drafts: Sequence[Draft],
        options: GenerationOptions = GREEDY,
        stop: Sequence[str] = (),
        progress: Callable[[int], object] | None = None,
    ) -> list[TokenIds]:
        """Return the tokens that follow each prompt, without the end token; equal drafts are continued once.

        Args:
            drafts: drafts with equal prompt lengths or equal `max_new_tokens`, because a batch needs
                positions for its longest prompt plus its largest `max_new_tokens`.
            options: how tokens are chosen; each draft has its own seed of sampling.
            stop: texts that end a continuation, like the model's end token; the tokens that complete the
                first of them are the last.
            progress: is called with the number of continuations of each batch.

        Raises:
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        found: dict[Draft, TokenIds] = {}
        times = Counter(drafts)
        tokens = {draft: len(draft.prompt.token_ids) + draft.max_new_tokens for draft in times}
        equal = self._reads_padding or counts_prompts(self.model, options)
        for batch in batches(tokens, self.max_tokens_per_batch, equal=equal):
            with within_memory("texts", len(batch), len(batch[0].prompt.token_ids)):
                continuations = self._generate(batch, options, stop)
            found.update(zip(batch, continuations, strict=True))
            if progress:
                progress(sum(times[draft] for draft in batch))
        return [found[draft] for draft in drafts]

    def stream(
        self, draft: Draft, options: GenerationOptions = GREEDY, stop: Sequence[str] = ()
    ) -> Iterator[int]:
        """Yield the tokens that `continue_drafts` returns for a draft, as soon as they are found.

        Raises:
            RunError: the prompt does not fit into the device's memory, or the scores are not finite.
        """
        stream = TokenStream()

        def search() -> None:
            with within_memory("texts", 1, len(draft.prompt.token_ids)):
                self._generate([draft], options, stop, stream)

        ends = self._ends
        for token in stream.tokens_of(search):
            if token not in ends:  # the last, after which the scores are checked
                yield token

    def texts_of(self, drafts: Sequence[Draft], continuations: Sequence[TokenIds]) -> list[str]:
        """Return the text that the tokens of each continuation add to its prompt."""
        texts = ContinuationTexts(self._texts, [draft.prompt for draft in drafts])
        return texts.decode(range(len(drafts)), continuations)

    def before_stop(self, text: str, stop: Sequence[str] = ()) -> str:
        """Return the part of a text before the first of the stop texts, or of the model's own."""
        return before_stop(text, self.stop_texts(stop))

    def stop_texts(self, stop: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the stop texts with those of the model's own generation_config.json."""
        return (*stop, *self._stops)

    @property
    def byte_ids(self) -> frozenset[int]:
        """The tokens for single bytes."""
        return self._texts.byte_ids

    @cached_property
    def _stops(self) -> tuple[str, ...]:
        """The stop texts of the model's own generation_config.json."""
        stops: Any = getattr(self.model.generation_config, "stop_strings", None) or ()
        return (stops,) if isinstance(stops, str) else tuple(stops)

    @cached_property
    def _reads_padding(self) -> bool:
        return reads_padding(self.model)

    @torch.inference_mode()
    def _score(self, batch: list[TokenIds], answers: list[Continuation]) -> list[float]:
        """Return the log-probability of each answer from the inputs of a batch [R, T]."""
        device = self.model.device
        input_ids, attention_mask = padded(batch, None, device)  # answers do not see padding there
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

    def _logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, last: int) -> torch.Tensor:
        """Return the logits of the last positions: [R, last, V]; most models can skip the others."""
        options = {"logits_to_keep": last, "use_cache": False}
        known = {name: value for name, value in options.items() if name in self._forward_arguments}
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, **known).logits
        return logits[:, -last:]

    @torch.inference_mode()
    def _generate(
        self,
        batch: list[Draft],
        options: GenerationOptions,
        stop: Sequence[str],
        stream: TokenStream | None = None,
    ) -> list[TokenIds]:
        # Padding is on the left, so that generated tokens follow prompts.
        prompts = [draft.prompt for draft in batch]
        input_ids, attention_mask = padded(
            [prompt.token_ids for prompt in prompts], None, self.model.device, "left"
        )
        length, most = input_ids.shape[1], max(draft.max_new_tokens for draft in batch)
        finite = FiniteScores()
        texts = ContinuationTexts(self._texts, prompts)
        stopping = StopTexts(texts, self._until_end, self.stop_texts(stop), length)
        criteria = [*([stopping] if stopping.stop else []), *([stream] if stream else [])]
        names = ("repetition_penalty", "no_repeat_ngram_size")
        penalties = {name: value for name in names if (value := getattr(options, name)) is not None}
        try:
            sequences = self.model.generate(  # [R, T + at most max_new_tokens]
                input_ids=input_ids,
                attention_mask=attention_mask,
                num_beams=1,
                do_sample=False,
                use_cache=True,  # training may have disabled it in the configuration
                max_new_tokens=None,
                max_length=length + most,
                pad_token_id=self.tokenizer.pad_token_id or 0,
                stopping_criteria=StoppingCriteriaList(criteria),
                streamer=stream,
                logits_processor=LogitsProcessorList([finite, *self._processors(batch, options, length)]),
                **_PLAIN_SEARCH,
                **penalties,
            )
        except UserError:
            raise
        except ValueError as error:  # the options are checked before; only the model's are left
            raise UserError(
                f"generate refuses the model or its generation_config: {one_line(error)}"
            ) from error
        finite.check(self.model)
        found = self._until_end(sequences[:, length:])
        limits = (min(stopping.lengths.get(row, most), one.max_new_tokens) for row, one in enumerate(batch))
        return [tokens[:limit] for tokens, limit in zip(found, limits, strict=True)]

    def _processors(
        self, batch: list[Draft], options: GenerationOptions, length: int
    ) -> list[LogitsProcessor]:
        """Return the logits processors for the tokens after prompts of this padded length."""
        processors: list[LogitsProcessor] = []
        spaces = [draft.prompt.before_space for draft in batch]
        if any(spaces) and self._after_space:
            processors.append(BeginWithSpace(spaces, [*self._after_space, *self._ends], length))
        if options.sampling is not None:
            seeds = [draft.seed for draft in batch]
            most = max(draft.max_new_tokens for draft in batch)
            processors.append(SeededSampling(seeds, most, options.sampling, length))
        return processors

    @cached_property
    def _after_space(self) -> list[int]:
        return tokens_after_space(self._texts)

    def _token_ids(self, texts: Sequence[str], rendered: bool = False) -> list[TokenIds]:
        if rendered:
            return [tuple(token_ids) for token_ids in template_token_ids(self._texts, texts)]
        encoded = self._texts.token_ids(texts, add_special_tokens=False)
        return [(*self.leading, *token_ids) for token_ids in encoded]

    def _decode(self, sequences: Sequence[TokenIds]) -> list[str]:
        return self._texts.decode([list(token_ids) for token_ids in sequences])

    def _until_end(self, sequences: torch.Tensor) -> list[TokenIds]:
        """Return the rows of tokens [R, N] up to the first end token of each."""
        ended = torch.isin(sequences, torch.tensor(self._ends, device=sequences.device)).cumsum(dim=1) > 0
        return [tuple(row[~end].tolist()) for row, end in zip(sequences, ended, strict=True)]

    @property
    def _ends(self) -> list[int]:
        """The tokens that end a text."""
        ends: Any = self.model.generation_config.eos_token_id
        return [] if ends is None else torch.tensor(ends).reshape(-1).tolist()


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
