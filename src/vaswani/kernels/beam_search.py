"""The loop of beam search: it continues hypotheses by tokens and keeps the best of those that end.

Its rules, and the order of its sums in float32, are those of transformers' loop, and so are its results. It
computes less: it needs only the C best tokens of each row, which include the C best continuations of a
source. The log-probabilities of all tokens are stored only if the caller asks for them.

S sources · K beams of each · C = K · max(2, 1 + end tokens) candidates of a source
V tokens in the vocabulary · T tokens of a hypothesis, P of them its prompt
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateBeamEncoderDecoderOutput

from vaswani.kernels.best_tokens import best_tokens
from vaswani.kernels.search_cache import SearchCache
from vaswani.model.compatibility import CACHE_NAME

EXCLUDED = -1e9  # added to the scores of candidates that must not be chosen


def can_search(generation_config: GenerationConfig, arguments: dict[str, Any]) -> bool:
    """Return whether `beam_search` supports all options of a call of `generate`."""
    shows_every_step = generation_config.return_dict_in_generate and (
        generation_config.output_attentions
        or generation_config.output_hidden_states
        or generation_config.output_logits
    )
    return not (
        shows_every_step
        or generation_config.do_sample
        or generation_config.low_memory
        or arguments.get("synced_gpus")
    )


def beam_search(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    **arguments: Any,
) -> Any:
    """Replace `GenerationMixin._beam_search` if `can_search`, with a `SearchCache` that has a tree.

    Returns:
        Tokens of the best hypotheses, int64 [S · num_return_sequences, T], or the library's output with them.
    """
    cache: SearchCache = arguments[CACHE_NAME]
    search = BeamSearch(input_ids, stopping_criteria, generation_config)
    chooser = TokenChooser(cache, logits_processor, generation_config, search.num_candidates)
    num_new = input_ids.shape[1]
    may_drop = not generation_config.return_dict_in_generate  # else the caller gets the states of all rows
    while not search.has_ended:
        if may_drop:
            cache.drop(search.is_done)
        sequences = search.running.tokens.flatten(0, 1)
        logits = cache.next_logits(model, sequences, num_new, arguments)
        rows = search.advance(*chooser.best(sequences, logits), chooser.all_scores)
        cache.reorder_cache(rows)  # type: ignore[arg-type]
        num_new = 1
    return search.output(cache, chooser.all_scores)


class TokenChooser:
    """Finds the best tokens of each row, by the scores that the logits processors leave.

    A processor whose `takes_best_tokens` is true only reads scores: it gets only the scores of the best
    tokens of each row, and returns them unchanged.

    Args:
        num_candidates: C, for each source.
    """

    def __init__(
        self,
        cache: SearchCache,
        processors: LogitsProcessorList,
        generation_config: GenerationConfig,
        num_candidates: int,
    ):
        self.cache, self.processors, self.num_candidates = cache, processors, num_candidates
        is_output = generation_config.return_dict_in_generate and generation_config.output_scores
        self.all_scores: tuple[torch.Tensor, ...] | None = () if is_output else None
        only_read = all(getattr(processor, "takes_best_tokens", False) for processor in processors)
        self._takes_all = is_output or not only_read
        self._before: tuple[torch.Tensor, torch.Tensor]  # of the previous step

    def best(self, sequences: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the best tokens of each row, and the tokens: float32 and int64 [S·K, C].

        A row has V tokens if V is less than C.

        Args:
            sequences: int64 [S·K, T].
            logits: [rows computed, V].
        """
        count = min(self.num_candidates, logits.shape[1])
        if self._takes_all:
            log_probs: Any = self.cache.widen(logits.float().log_softmax(-1))
            scores = self.processors(sequences, log_probs)  # type: ignore[arg-type]
            if self.all_scores is not None:
                self.all_scores += (scores.clone(),)
            return best_tokens(scores, count, normalize=False)
        values, tokens = self._widened(*best_tokens(logits.float(), count, normalize=True))
        return self.processors(sequences, values), tokens  # type: ignore[arg-type]

    def _widened(self, values: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows computed, C] -> [S·K, C]. Sources that are done keep old values, which have no effect."""
        if self.cache.rows is None:
            self._before = self.cache.widen(values), self.cache.widen(tokens)
        else:
            for before, computed in zip(self._before, (values, tokens), strict=True):
                before.index_copy_(0, self.cache.rows, computed)
        return self._before


@dataclass
class Hypotheses:
    """n hypotheses of each source.

    Args:
        scores: float32 [S, n].
        tokens: int64 [S, n, T].
        rows: the row that each token after the prompt continued, int32 [S, n, T - P].
    """

    scores: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor

    @property
    def length(self) -> int:
        """Return the number of tokens after the prompt."""
        return self.rows.shape[2]

    def at(self, places: torch.Tensor, scores: torch.Tensor) -> Hypotheses:
        """Return the hypotheses at these places, int64 [S, m], with these scores."""
        indices = _flat(places, self.scores.shape[1]).flatten()
        tokens, rows = (
            each.flatten(0, 1).index_select(0, indices).unflatten(0, places.shape)
            for each in (self.tokens, self.rows)
        )
        return Hypotheses(scores, tokens, rows)

    def continued(self, values: torch.Tensor, tokens: torch.Tensor, count: int) -> Hypotheses:
        """Return the best continuations [S, count] by tokens [S·n, m] with log-probabilities `values`."""
        values, tokens = (each.unflatten(0, self.scores.shape).flatten(1) for each in (values, tokens))
        per_row = values.shape[1] // self.scores.shape[1]
        scores, places = (values + self.scores.repeat_interleave(per_row, dim=1)).topk(count)
        beams = places // per_row
        found = self.at(beams, scores)
        rows = _flat(beams, self.scores.shape[1]).int()
        return Hypotheses(
            scores,
            torch.cat([found.tokens, tokens.gather(1, places)[:, :, None]], dim=2),
            torch.cat([found.rows, rows[:, :, None]], dim=2),
        )

    def joined(self, longer: Hypotheses, padding: int) -> Hypotheses:
        """Return these hypotheses followed by `longer` ones, which have as many tokens or more."""
        missing = (0, longer.length - self.length)
        return Hypotheses(
            torch.cat([self.scores, longer.scores], dim=1),
            torch.cat([pad(self.tokens, missing, value=padding), longer.tokens], dim=1),
            torch.cat([pad(self.rows, missing, value=-1), longer.rows], dim=1),
        )


class BeamSearch:
    """The hypotheses of a search: those that continue, and the best of those that have ended.

    Args:
        prompts: the prompt of each beam, int64 [S·K, P].
        criteria: of the library and the caller; they decide which hypotheses end.
    """

    def __init__(
        self, prompts: torch.Tensor, criteria: StoppingCriteriaList, generation_config: GenerationConfig
    ):
        self.config, self.criteria = generation_config, criteria
        self.num_beams, self.prompt_length = generation_config.num_beams, prompts.shape[1]
        end = generation_config.eos_token_id
        ends = [] if end is None else torch.as_tensor(end).flatten().tolist()
        self.num_candidates = max(2, 1 + len(ends)) * self.num_beams
        self.padding = int(generation_config.pad_token_id or ends[0]) if ends else -1

        tokens = prompts.unflatten(0, (-1, self.num_beams))
        rows = torch.empty(*tokens.shape[:2], 0, dtype=torch.int32, device=prompts.device)
        scores = torch.full(tokens.shape[:2], EXCLUDED, dtype=torch.float32, device=prompts.device)
        self.ended = Hypotheses(scores, tokens, rows)
        self.is_complete = torch.zeros_like(scores, dtype=torch.bool)  # has ended, and is not an empty place
        scores = scores.clone()
        scores[:, 0] = 0.0  # the beams are still equal, so only the first is continued
        self.running = Hypotheses(scores, tokens, rows)
        self.may_improve = self.is_complete.new_ones(len(tokens), 1)
        self.is_done = ~self.may_improve[:, 0]  # sources whose results can no longer change, bool [S]
        self.has_ended = False

    def advance(self, values: torch.Tensor, tokens: torch.Tensor, all_scores: Any) -> torch.Tensor:
        """Continue all hypotheses by one token; return the row that each row now continues, int64 [S·K].

        Args:
            values: log-probabilities of the best tokens of each row, float32 [S·K, C].
            tokens: the best tokens, int64 [S·K, C].
            all_scores: scores of all steps, for the stopping criteria.
        """
        candidates = self.running.continued(values, tokens, self.num_candidates)
        ends = self.criteria(candidates.tokens.flatten(0, 1), all_scores)
        ends = ends.view_as(candidates.scores)
        scores, places = _excluding(candidates.scores, ends).topk(self.num_beams)
        self.running = candidates.at(places, scores)
        if bool(ends[:, : self.num_beams].any()):
            self._keep_ended(candidates, ends)
        self._update_progress()
        self.has_ended = bool(self.is_done.all() | ends.all())
        return self.running.rows[:, :, -1].flatten().long()

    def _keep_ended(self, candidates: Hypotheses, ends: torch.Tensor) -> None:
        """Keep the best K hypotheses that have ended. Only the best K candidates are considered."""
        scores = candidates.scores / candidates.length**self.config.length_penalty
        for excluded in (self._is_full(), ~self.may_improve, ~ends):
            scores = _excluding(scores, excluded)
        first = slice(self.num_beams)
        considered = Hypotheses(scores[:, first], candidates.tokens[:, first], candidates.rows[:, first])
        all_ended = self.ended.joined(considered, self.padding)
        scores, places = all_ended.scores.topk(self.num_beams)
        self.ended = all_ended.at(places, scores)
        self.is_complete = torch.cat([self.is_complete, ends[:, first]], dim=1).gather(1, places)

    def _is_full(self) -> torch.Tensor:
        """Return which sources need no more hypotheses, bool [S, 1]."""
        return self.is_complete.all(dim=1, keepdim=True) & (self.config.early_stopping is True)

    def _update_progress(self) -> None:
        """Find the sources that are done: their best running hypothesis cannot beat the worst one kept.

        The best score that it can reach is the library's estimate.
        """
        length, penalty = self.running.length, self.config.length_penalty
        if self.config.early_stopping == "never" and penalty > 0.0:
            length = self.config.max_length - self.prompt_length
        best_possible = self.running.scores[:, :1] / length**penalty
        worst = self.ended.scores.amin(dim=1, keepdim=True)
        improves = best_possible > torch.where(self.is_complete, worst, EXCLUDED)
        self.may_improve = self.may_improve & improves.any(dim=1, keepdim=True)
        self.is_done = (~self.may_improve | self._is_full())[:, 0]

    def output(self, cache: SearchCache, all_scores: Any) -> Any:
        """Return the best hypotheses of each source, in the form that `generate` returns."""
        count = self.config.num_return_sequences
        rows = self.ended.rows[:, :count].flatten(0, 1)
        length = int((rows >= 0).sum(dim=1).max())
        sequences = self.ended.tokens[:, :count].flatten(0, 1)[:, : self.prompt_length + length]
        if not self.config.return_dict_in_generate:
            return sequences
        fields: Any = {
            "sequences": sequences,
            "sequences_scores": None if all_scores is None else self.ended.scores[:, :count].flatten(),
            "scores": all_scores,
            "beam_indices": rows[:, :length],
            CACHE_NAME: cache,
        }
        return GenerateBeamEncoderDecoderOutput(**fields)


def _flat(places: torch.Tensor, count: int) -> torch.Tensor:
    """Convert places within the `count` hypotheses of each source, [S, m], to places within all of them."""
    return places + torch.arange(0, len(places) * count, count, device=places.device)[:, None]


def _excluding(scores: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return scores + where.float() * EXCLUDED
