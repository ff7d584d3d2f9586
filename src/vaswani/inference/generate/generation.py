"""Continue texts, or answer chats, with a causal language model.

    generator = TextGenerator.from_pretrained("runs/causal_lm", temperature=0.8)
    print(generator(["The train"]))

Results do not depend on the batch, except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text.chats import ASSISTANT, USER, Chat, as_chat, rendered_chat
from vaswani.data.text_codec import Frame, begin_token_id, first_token_ids
from vaswani.errors import UserError, check_positive
from vaswani.inference.batches import BUFFERED_TEXTS, buffers, check_several, checked, listed
from vaswani.inference.continuing import Prompt, TokenIds
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.language_model import Draft, LanguageModel
from vaswani.inference.loading import FromPretrained
from vaswani.inference.sides import TooLong
from vaswani.inference.streaming import pieces_of

DEFAULT_NEW_TOKENS = 128

TextOrChat = str | Chat


@dataclass(frozen=True)
class GeneratedText:
    """One continuation of a prompt.

    Args:
        text: the continuation, without special tokens and stop texts. Append it to the prompt for the whole
            text: it begins with a space if a space separates them.
        complete: whether the end token or a stop text ended it, and not the length limit.
        log_prob: log P(continuation | prompt) of the generated tokens, without the end token, and up to the
            token that completes a stop text; None without scores.
    """

    text: str
    complete: bool
    log_prob: float | None = None


@dataclass(frozen=True)
class Generation:
    """The result for one prompt.

    Args:
        prompt: the text, or the messages of the chat.
        continuations: the continuations, in the order of their draws; empty with a problem.
        problem: why the prompt could not be continued; None if it could.
        prompt_cut_off: whether only the end of the prompt was read.
    """

    prompt: TextOrChat
    continuations: tuple[GeneratedText, ...] = ()
    problem: str | None = None
    prompt_cut_off: bool = False

    @property
    def text(self) -> str:
        """The first continuation, or an empty text if there is none."""
        return self.continuations[0].text if self.continuations else ""

    @property
    def cut_off(self) -> bool:
        """Whether a continuation ends at the length limit."""
        return any(not one.complete for one in self.continuations)


@dataclass(frozen=True)
class _Request:
    """A requested continuation: a prompt of a stream.

    Args:
        number: its number in the stream.
        prompt: the text or the chat, as given.
        text: what the model reads.
        rendered: whether a chat template wrote the text.
        problem: why the chat has no text; None if it has.
    """

    number: int
    prompt: TextOrChat
    text: str
    rendered: bool = False
    problem: str | None = None

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class _FittedPrompt:
    """A prompt with the number of tokens that may follow."""

    prompt: Prompt
    new_tokens: int
    problem: str | None = None
    cut_off: bool = False


class TextGenerator(FromPretrained):
    """Continues texts, or answers chats, with any causal language model.

    Args:
        model: a causal model; it is put into evaluation mode.
        tokenizer: the tokenizer of the model; with a chat template for chats.
        max_new_tokens: maximum tokens of a continuation.
        stop: texts that end a continuation, like the model's end token; they are not part of it.
        too_long: for prompts after which the model has positions for fewer tokens: `"skip"` shortens the
            continuation, and finds none, with the problem, if not even one token fits; `"cut"` reads only the
            end of the prompt, so that `max_new_tokens` fit.
        chat: each text is the message of a user, to be answered, instead of a text to continue.
        max_tokens_per_batch: maximum tokens of a batch, with padding and generated tokens. A longer text
            forms its own batch.
        options: how tokens are chosen (see `GenerationOptions`); greedily by default.

    Raises:
        UserError: an option is out of range or contradicts another, or the model is not causal.
    """

    _auto_class = AutoModelForCausalLM
    _engines = ("torch", "onnx")

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_new_tokens: int = DEFAULT_NEW_TOKENS,
        stop: Sequence[str] = (),
        too_long: TooLong = "skip",
        chat: bool = False,
        max_tokens_per_batch: int = 8192,
        **options: Any,
    ):
        self.options = check_generation(max_new_tokens, stop, too_long, **options)
        self.max_new_tokens, self.stop, self.too_long = max_new_tokens, tuple(stop), too_long
        if chat and tokenizer.chat_template is None:
            raise UserError("chat needs a chat template, and the tokenizer has none; leave out chat")
        self.chat = chat
        self.language_model = LanguageModel(model, tokenizer, max_tokens_per_batch)
        positions = self.language_model.positions
        if too_long == "cut" and positions is not None and self._kept(positions) <= len(self._leading):
            raise UserError(
                f"max_new_tokens={max_new_tokens} leaves no room for a prompt: the model has positions for "
                f"{positions:,} tokens; lower it, or give too_long=skip"
            )

    def __call__(self, prompts: Iterable[TextOrChat]) -> list[str]:
        """Return the continuation of each prompt, in order.

        Raises:
            UserError: a single text is given, or a prompt cannot be continued.
        """
        texts = []
        for number, generation in enumerate(self.generate(prompts, with_scores=False), 1):
            if generation.problem:
                raise UserError(f"prompt {number:,}: {generation.problem}")
            texts.append(generation.text)
        return texts

    def generate(
        self,
        prompts: Iterable[TextOrChat],
        *,
        num_samples: int = 1,
        with_scores: bool = True,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Generation]:
        """Continue a stream of prompts, in order and in bounded memory.

        Args:
            prompts: texts, or chats: lists of messages with `role` and `content`. An answer of the assistant
                at the end of a chat is left out: the model answers in its place.
            num_samples: continuations of each prompt; more than one needs `temperature`. They depend on the
                seed and on the number of the prompt, not on the batch.
            with_scores: also compute the log-probability of each continuation, which takes another pass.
            buffer_size: number of prompts to read ahead; smaller at the beginning and for very long ones.
            progress: is called with the number of prompts that a batch has finished.

        Raises:
            UserError: an argument is out of range, or a prompt is neither a text nor a chat.
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        check_several(prompts, "prompts")
        check_positive(buffer_size=buffer_size)
        self.options.check_samples(num_samples)
        requests = (self._request(prompt, number) for number, prompt in enumerate(prompts))
        return self._generate_buffers(requests, num_samples, with_scores, buffer_size, progress)

    def stream(self, prompt: TextOrChat, *, number: int = 0) -> Generator[str, None, Generation]:
        """Yield the continuation of a prompt in pieces, as soon as they are found; join them for the whole.

            for piece in generator.stream("The train"):
                print(piece, end="", flush=True)

        Args:
            prompt: a text or a chat, as in `generate`.
            number: number of the prompt among those that are sampled with the same seed.

        Returns:
            A generator of pieces, which returns the whole `Generation`, without a log-probability.

        Raises:
            UserError: the prompt is neither a text nor a chat, or cannot be continued.
            RunError: during iteration, if the prompt does not fit into the device's memory, or the scores are
                not finite.
        """
        request = self._request(prompt, number)
        (fitted,) = self._fit_all([request])
        if fitted.problem is not None:
            raise UserError(fitted.problem)
        return self._pieces(request.prompt, fitted, number)

    @property
    def _leading(self) -> TokenIds:
        """The tokens that stay in front of a prompt that is cut."""
        leading = self.language_model.leading
        return first_token_ids(self.language_model.tokenizer, leading) if self.chat else leading

    def _kept(self, positions: int) -> int:
        """Return the number of tokens of a prompt that is cut; the last new token needs no position."""
        return positions + 1 - self.max_new_tokens

    def _request(self, prompt: Any, number: int) -> _Request:
        """Return a prompt with the text that the model reads."""
        where = f"prompt {number + 1:,}"
        if isinstance(prompt, str):
            (text,) = checked([prompt])
            if not self.chat:
                return _Request(number, prompt, text)
            chat: Chat = [{"role": USER, "content": text}]
        else:
            try:
                chat = as_chat(prompt)
            except UserError as error:
                raise UserError(f"{where} is neither a text nor a chat: {error}") from error
        tokenizer = self.language_model.tokenizer
        if tokenizer.chat_template is None:
            raise UserError(f"{where} is a chat, and the tokenizer has no chat template; give texts")
        if chat and chat[-1]["role"] == ASSISTANT:
            chat = chat[:-1]
        try:
            text = rendered_chat(tokenizer, chat, "it", add_generation_prompt=True)
        except UserError as error:
            return _Request(number, prompt, "", problem=str(error))
        return _Request(number, prompt, text, rendered=True)

    def _generate_buffers(
        self,
        requests: Iterator[_Request],
        num_samples: int,
        with_scores: bool,
        buffer_size: int,
        progress: Callable[[int], object] | None,
    ) -> Iterator[Generation]:
        for buffer in buffers(requests, buffer_size):
            fitted = self._fit_all(buffer)
            drafts = [
                [] if fit.problem else self._drafts(fit, one.number, num_samples)
                for one, fit in zip(buffer, fitted, strict=True)
            ]
            done = _in_prompts(progress, num_samples)
            done(num_samples * sum(not of_prompt for of_prompt in drafts))
            flat = [draft for of_prompt in drafts for draft in of_prompt]
            found = iter(self._continued(flat, with_scores, done))
            for one, fit, of_prompt in zip(buffer, fitted, drafts, strict=True):
                continuations = tuple(next(found) for _ in of_prompt)
                yield Generation(one.prompt, continuations, fit.problem, fit.cut_off)

    def _encode(self, requests: list[_Request]) -> list[Prompt]:
        """Return the tokens of texts, and those of chats, which their template has framed."""
        encoded = {}
        for rendered in (False, True):
            texts = [one.text for one in requests if one.rendered == rendered]
            encoded[rendered] = iter(self.language_model.encode(texts, rendered=rendered))
        return [next(encoded[one.rendered]) for one in requests]

    def _fit_all(self, requests: list[_Request]) -> list[_FittedPrompt]:
        """Return the prompts, with their problems or the number of new tokens."""
        return [
            self._fit(prompt) if one.problem is None else _FittedPrompt(prompt, 0, one.problem)
            for one, prompt in zip(requests, self._encode(requests), strict=True)
        ]

    def _fit(self, prompt: Prompt) -> _FittedPrompt:
        """Return a prompt with the number of new tokens that the model has positions for."""
        token_ids = prompt.token_ids
        most, positions = self.max_new_tokens, self.language_model.positions
        if not token_ids:
            begin = begin_token_id(self.language_model.tokenizer)
            if begin is None:
                return _FittedPrompt(
                    prompt, 0, "it is empty, and the tokenizer has no token that begins a text"
                )
            return self._fit(Prompt((begin,)))
        if positions is None or len(token_ids) <= self._kept(positions):
            return _FittedPrompt(prompt, most)
        if self.too_long == "cut":
            leading = self._leading if token_ids[: len(self._leading)] == self._leading else ()
            cut = Frame(leading, (), keeps_end=True).cut(token_ids, self._kept(positions))
            return _FittedPrompt(prompt._replace(token_ids=tuple(cut)), most, cut_off=True)
        if len(token_ids) > positions:
            problem = f"it has {len(token_ids):,} tokens, and the model has positions for {positions:,}"
            return _FittedPrompt(prompt, 0, f"{problem}; shorten it, or give too_long=cut")
        return _FittedPrompt(prompt, positions + 1 - len(token_ids))

    def _drafts(self, fitted: _FittedPrompt, number: int, num_samples: int) -> list[Draft]:
        """Return a draft for each continuation, with its own random numbers if it is sampled."""
        seeds: list[tuple[int, ...]] = [()]
        if self.options.sampling is not None:
            seeds = [(self.options.seed or 0, number, sample) for sample in range(num_samples)]
        return [Draft(fitted.prompt, fitted.new_tokens, seed) for seed in seeds]

    def _pieces(
        self, prompt: TextOrChat, fitted: _FittedPrompt, number: int
    ) -> Generator[str, None, Generation]:
        """Yield words as soon as they are complete and cannot be the beginning of a stop text."""
        model = self.language_model
        (draft,) = self._drafts(fitted, number, 1)

        def decode(token_ids: list[int]) -> str:
            return model.texts_of([draft], [tuple(token_ids)])[0]

        tokens, stop = model.stream(draft, self.options, self.stop), model.stop_texts(self.stop)
        found, text = yield from pieces_of(tokens, decode, model.byte_ids, stop)
        ended = model.before_stop(text, self.stop)
        complete = len(found) < draft.max_new_tokens or ended != text
        return Generation(prompt, (GeneratedText(ended, complete),), prompt_cut_off=fitted.cut_off)

    def _continued(
        self, drafts: list[Draft], with_scores: bool, progress: Callable[[int], object]
    ) -> list[GeneratedText]:
        """Continue drafts; those with equally many new tokens together."""
        model, found = self.language_model, dict[Draft, TokenIds]()
        for new_tokens in sorted({draft.max_new_tokens for draft in drafts}):
            equal = [draft for draft in drafts if draft.max_new_tokens == new_tokens]
            continued = model.continue_drafts(equal, self.options, self.stop, progress)
            found.update(zip(equal, continued, strict=True))
        texts = model.texts_of([*found], [*found.values()])
        whole = [draft.followed_by(token_ids) for draft, token_ids in found.items() if token_ids]
        scores = iter(model.log_probs(whole) if with_scores else ())
        results = {}
        for (draft, token_ids), text in zip(found.items(), texts, strict=True):
            ended = model.before_stop(text, self.stop)
            complete = len(token_ids) < draft.max_new_tokens or ended != text
            score = (next(scores) if token_ids else 0.0) if with_scores else None
            results[draft] = GeneratedText(ended, complete, score)
        return [results[draft] for draft in drafts]


def check_generation(
    max_new_tokens: int, stop: Sequence[str], too_long: str, **options: Any
) -> GenerationOptions:
    """Return the options for choosing tokens; raise a UserError for options of a `TextGenerator`."""
    check_positive(max_new_tokens=max_new_tokens)
    if too_long not in ("cut", "skip"):
        raise UserError(f"too_long={too_long} is unknown; expected cut or skip")
    if "" in listed("stop", stop):
        raise UserError("stop holds an empty text, which would end every continuation; leave it out")
    return GenerationOptions(**options)


def _in_prompts(progress: Callable[[int], object] | None, num_samples: int) -> Callable[[int], None]:
    """Return a function that takes numbers of continuations and reports numbers of prompts."""
    total = 0

    def done(continuations: int) -> None:
        nonlocal total
        before, total = total, total + continuations
        if progress:
            progress(total // num_samples - before // num_samples)

    return done
