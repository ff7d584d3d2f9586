"""Search with an encoder-decoder of transformers, by its `generate`.

S sentences of a batch · K hypotheses of each · L source length · T target length
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, repeat
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from vaswani.errors import UserError, one_line
from vaswani.inference.batches import padded
from vaswani.inference.cross_attention import check_returns_weights, coverage, cross_attention
from vaswani.inference.decoding import LengthLimits, MinimumLengths
from vaswani.inference.finite_scores import FiniteScores, check_finite_scores
from vaswani.inference.forced_prefixes import ForcedPrefixes
from vaswani.inference.position_limits import position_limit
from vaswani.inference.required_phrases import RequiredPhrases, missing_phrases
from vaswani.inference.sampling import SeededSampling
from vaswani.inference.streaming import TokenStream
from vaswani.inference.token_log_probs import target_log_probs
from vaswani.inference.translate.engine import Demands, Engine, Output, SearchOptions, ranked
from vaswani.unwritten_padding import unwritten_padding


@dataclass(frozen=True)
class _SearchResult:
    """The hypotheses that a search found.

    Args:
        inputs: `input_ids` and `attention_mask` of the sources, int64 [S, L].
        sequences: int64 [S·K, 1 + T], with the start token; the K hypotheses of a source are adjacent.
        lengths: lengths of the hypotheses, with the end token: int64 [S·K].
        complete: whether the hypotheses have an end token: bool [S·K].
    """

    inputs: dict[str, torch.Tensor]
    sequences: torch.Tensor
    lengths: torch.Tensor
    complete: torch.Tensor


# Fields of a `generation_config` that select another search or stopping rule, with their neutral values.
_OTHER_SEARCHES = {
    "num_beam_groups": 1,
    "guidance_scale": 1.0,
    **dict.fromkeys(("penalty_alpha", "dola_layers", "prompt_lookup_num_tokens", "constraints")),
    **dict.fromkeys(("force_words_ids", "stop_strings", "max_time")),
}


class TorchEngine(Engine):
    """An encoder-decoder that can `generate`.

    Args:
        model: the encoder-decoder; it is put into evaluation mode.
    """

    name = "torch"
    supports = frozenset(field.name for of in (SearchOptions, Demands) for field in fields(of))
    streams = True

    def __init__(self, model: PreTrainedModel):
        self.model = model.eval()
        self.source_positions = position_limit(model, "source")
        self.target_positions = position_limit(model, "target")

    @property
    def generation_config(self) -> Any:  # type: ignore[override]
        """The generation configuration of the model."""
        return self.model.generation_config

    def check(self, options: SearchOptions, start_options: dict[str, int]) -> None:
        """See `Engine.check`; also check the generation_config, and that needed attention is returned."""
        super().check(options, start_options)
        for name, neutral in _OTHER_SEARCHES.items():
            if (value := getattr(self.generation_config, name, None)) not in (None, neutral, []):
                raise UserError(
                    f"the generation_config of the model has {name}={value}, which selects another search "
                    "or stopping rule; remove it"
                )
        if options.coverage_penalty:
            check_returns_weights(self.model, f"coverage_penalty={options.coverage_penalty}")
        if options.attention_of is not None:
            option = "alignments" if options.attention_of == "all" else "replace_unknown"
            check_returns_weights(self.model, option)

    @torch.inference_mode()
    def search(
        self,
        sources: list[list[int]],
        limits: list[int],
        options: SearchOptions,
        *,
        start_options: dict[str, int],
        demands: list[Demands] | None = None,
        n_best: int = 1,
        with_scores: bool = False,
    ) -> list[list[Output]]:
        """See `Engine.search`."""
        demands = demands or [Demands()] * len(sources)
        copies = 1 if options.sampling is None else n_best  # each sample has its own row
        sources, limits, demands = ([*_repeated(rows, copies)] for rows in (sources, limits, demands))
        ranks = options.coverage_penalty > 0 or any(demand.required for demand in demands)
        chooses = ranks or any(demand.prefix for demand in demands)  # from all hypotheses of the search
        returned = options.num_beams if chooses else n_best // copies  # hypotheses of each row
        inputs, most = self._inputs(sources), torch.tensor(limits, device=self.model.device)
        prompt_length = self._prompt_length(start_options)
        sequences = self._generate(
            inputs, limits, options, start_options, demands, samples=copies, num_return_sequences=returned
        )
        lengths, complete = self._endings(sequences[:, 1:], most.repeat_interleave(returned))
        found = _SearchResult(inputs, sequences, lengths, complete)
        outputs = self._outputs(found, options, prompt_length, with_scores or ranks)
        per_source = returned * copies
        groups = [outputs[start : start + per_source] for start in range(0, len(outputs), per_source)]
        return [
            _best(group, demand, options, prompt_length)[:n_best]
            for group, demand in zip(groups, demands[::copies], strict=True)
        ]

    def stream(
        self,
        source: list[int],
        limit: int,
        options: SearchOptions,
        *,
        start_options: dict[str, int],
        demands: Demands,
    ) -> Iterator[int]:
        """See `Engine.stream`."""
        stream = TokenStream()
        inputs = self._inputs([source])

        @torch.inference_mode()  # applies to the current thread only
        def search() -> None:
            self._generate(inputs, [limit], options, start_options, [demands], stream=stream)

        ends = self.end_token_ids
        is_open = True
        # Read the stream to its end, because the scores are checked there.
        for place, token in enumerate(stream.tokens_of(search), start=1):
            if is_open:
                yield token
            is_open = is_open and place < limit and token not in ends

    def ranks_by_score(self, options: SearchOptions) -> bool:
        """See `Engine.ranks_by_score`; also false if the search normalizes scores without banned tokens."""
        return super().ranks_by_score(options) and not self._renormalizes(options)

    def _renormalizes(self, options: SearchOptions) -> bool:
        """Return whether the search normalizes scores again after banned tokens are excluded."""
        return options.num_beams > 1 and unwritten_padding(self.model) is not None

    def _generate(
        self,
        inputs: dict[str, torch.Tensor],
        limits: list[int],
        options: SearchOptions,
        start_options: dict[str, int],
        demands: list[Demands],
        samples: int = 1,
        num_return_sequences: int = 1,
        stream: TokenStream | None = None,
    ) -> torch.Tensor:
        """Return hypotheses with the decoder's start token, int64 [S·K, 1 + T]; check the scores."""
        finite = FiniteScores(options.num_beams)
        processors = [finite, *self._processors(demands, limits, self._prompt_length(start_options))]
        if options.sampling is not None:
            seeds = _seeds(options, demands, samples)
            processors.append(SeededSampling(seeds, max(limits), options.sampling))
        criteria: list[StoppingCriteria] = [LengthLimits(torch.tensor(limits, device=self.model.device))]
        given = {} if stream is None else {"streamer": stream}
        try:
            sequences = self.model.generate(
                **inputs,
                num_return_sequences=num_return_sequences,
                do_sample=False,
                use_cache=True,  # training may have disabled it in the configuration
                max_new_tokens=None,
                max_length=1 + max(limits),
                return_dict_in_generate=False,
                forced_eos_token_id=None,  # some configurations force it at the batch's maximum length
                stopping_criteria=StoppingCriteriaList([*criteria, *given.values()]),
                logits_processor=LogitsProcessorList(processors),
                **given,
                **start_options,
                **self._options_of_generate(options),
            )
        except UserError:
            raise
        except ValueError as error:  # the options of a search are checked before; only the model's are left
            raise UserError(f"the generation_config of the model is refused: {one_line(error)}") from error
        finite.check(self.model)
        return sequences

    def _prompt_length(self, start_options: dict[str, int]) -> int:
        """Return the number of tokens before the first token that a search chooses."""
        of_model = self.generation_config.forced_bos_token_id
        return 1 if start_options.get("forced_bos_token_id", of_model) is None else 2

    def _outputs(
        self, found: _SearchResult, options: SearchOptions, prompt_length: int, with_scores: bool
    ) -> list[Output]:
        """Return the hypotheses of all sources."""
        count = len(found.sequences)
        log_probs, forced, coverages, attention = [None] * count, [0.0] * count, [0.0] * count, [()] * count
        if with_scores:
            scores = target_log_probs(
                self.model, **found.inputs, sequences=found.sequences, lengths=found.lengths
            )
            check_finite_scores(scores.isfinite().all(), self.model)
            log_probs = scores.sum(dim=1).tolist()
            if prompt_length > 1:
                forced = scores[:, 0].tolist()
        token = options.attention_of
        attends = token == "all" or (token is not None and bool((found.sequences == token).any()))
        if options.coverage_penalty or attends:
            mask = found.inputs["attention_mask"]
            weights = cross_attention(self.model, found.inputs["input_ids"], mask, found.sequences)
            source_mask = mask.repeat_interleave(count // len(mask), dim=0)
            if options.coverage_penalty:
                covered = coverage(weights, found.lengths, source_mask)
                coverages = (options.coverage_penalty * covered).tolist()
            attention = _attention_of(token, found, weights, source_mask)
        tokens = found.sequences[:, 1:].tolist()
        columns = (found.complete.tolist(), log_probs, forced, coverages, attention)
        rows = zip(tokens, found.lengths.tolist(), strict=True)
        return [Output(row[:length], *rest) for (row, length), *rest in zip(rows, *columns, strict=True)]

    def _processors(
        self, demands: list[Demands], limits: list[int], prompt_length: int
    ) -> list[LogitsProcessor]:
        """Return the logits processors that make the hypotheses of each source meet its demands."""
        processors: list[LogitsProcessor] = []
        ends = self.generation_config.eos_token_id
        if any(demand.min_length for demand in demands):
            least = torch.tensor([demand.min_length for demand in demands], device=self.model.device)
            processors.append(MinimumLengths(least, ends))
        if any(demand.required for demand in demands):
            phrases = [demand.required for demand in demands]
            room = torch.tensor(limits) - (prompt_length - 1)
            processors.append(RequiredPhrases(phrases, room, ends, prompt_length))
        if any(demand.prefix for demand in demands):
            processors.append(ForcedPrefixes([demand.prefix for demand in demands], prompt_length))
        return processors

    def _options_of_generate(self, options: SearchOptions) -> dict[str, Any]:
        """Return the options of `generate` for a search."""
        given: dict[str, Any] = {"num_beams": options.num_beams}
        if options.num_beams > 1:
            given |= {"length_penalty": options.length_penalty, "early_stopping": False}
            if self._renormalizes(options):
                given["renormalize_logits"] = True
        for name in ("no_repeat_ngram_size", "repetition_penalty"):
            if (value := getattr(options, name)) is not None:
                given[name] = value
        if options.suppress_sequences:
            of_model = self.generation_config.bad_words_ids or []
            given["bad_words_ids"] = [*of_model, *map(list, options.suppress_sequences)]
        return given

    def _inputs(self, sources: list[list[int]]) -> dict[str, torch.Tensor]:
        """Return `input_ids` and `attention_mask`, int64 [S, L]."""
        tokens, mask = padded(sources, self.model.config.pad_token_id, self.model.device)
        return {"input_ids": tokens, "attention_mask": mask}

    def _endings(self, tokens: torch.Tensor, limits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the length of each hypothesis, with its end token, and whether it has one: both [S·K].

        `generate` may pad with the end token, so only an end token within the limit counts.
        """
        end_token_ids = torch.tensor(self.model.generation_config.eos_token_id, device=tokens.device)
        within_limit = torch.arange(tokens.shape[1], device=tokens.device) < limits[:, None]
        is_end = torch.isin(tokens, end_token_ids) & within_limit  # [S·K, T]
        complete = is_end.any(dim=1)
        return torch.where(complete, is_end.int().argmax(dim=1) + 1, limits), complete


def _attention_of(
    token: Any, found: _SearchResult, weights: torch.Tensor, source_mask: torch.Tensor
) -> list[Any]:
    """Return the weights of each occurrence of a token, or of all tokens, without padding of the source.

    `weights` is [S·K, T, L].
    """
    if token is None:
        return [()] * len(found.sequences)
    attention: list[Any] = []
    for row, length in enumerate(found.lengths.tolist()):
        tokens = found.sequences[row, 1 : 1 + length]
        places = torch.arange(length) if token == "all" else tokens.eq(token).nonzero()[:, 0]
        kept = weights[row, places][:, source_mask[row] != 0]
        attention.append(tuple(map(tuple, kept.tolist())))
    return attention


def _repeated(rows: Sequence[Any], times: int) -> Iterator[Any]:
    """Yield each row `times` times."""
    return chain.from_iterable(repeat(row, times) for row in rows)


def _best(outputs: list[Output], demand: Demands, options: SearchOptions, prompt_length: int) -> list[Output]:
    """Return the hypotheses of one source that meet its demands, best first, each once.

    If forced tokens leave fewer hypotheses than beams, a search also returns copies and incomplete ones.
    """
    if demand.prefix or demand.required:
        unique = {tuple(output.token_ids): output for output in reversed(outputs)}
        outputs = [each for each in reversed(unique.values()) if _meets(each, demand, prompt_length)]
    if demand.required or options.coverage_penalty:
        outputs = ranked(outputs, options)
    return outputs


def _meets(output: Output, demand: Demands, prompt_length: int) -> bool:
    """Return whether a hypothesis has the demanded prefix and phrases."""
    tokens = output.token_ids[prompt_length - 1 :]
    begins = tuple(tokens[: len(demand.prefix)]) == demand.prefix
    return begins and not missing_phrases(tokens, demand.required)


def _seeds(options: SearchOptions, demands: list[Demands], samples: int) -> list[tuple[int, ...]]:
    """Return the seed of each sample of each source."""
    return [(options.seed or 0, demand.number, place % samples) for place, demand in enumerate(demands)]
