"""Search with CTranslate2 (https://github.com/OpenNMT/CTranslate2), an engine in C++.

CTranslate2 ranks hypotheses by log P / |Y|^α and has its own stopping rule. So this engine searches by plain
log-probability (α = 0), and then ranks the hypotheses of all beams with GNMT's penalty. With α = 0,
CTranslate2 stops when its best beam has finished and there are as many finished hypotheses as beams (twice as
many for n-best lists). transformers' search keeps as many finished hypotheses as beams, and stops when no
open hypothesis could be ranked among them. For α up to 1, nearly all best hypotheses are the same; a larger α
prefers long outputs, for which transformers searches longer.

CTranslate2 excludes tokens before the softmax, transformers after it. If tokens are excluded, the
probabilities of the search are not those of the model, so its hypotheses are scored again.

This engine does not sample, because CTranslate2's random numbers depend on the batch and on the threads.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from vaswani.errors import RunError, UserError, one_line
from vaswani.inference.token_log_probs import most_rows
from vaswani.inference.translate.ctranslate2_folder import CTranslate2Folder
from vaswani.inference.translate.engine import Demands, Engine, Output, SearchOptions, ranked
from vaswani.interop.to_ctranslate2 import check_engine

logger = logging.getLogger(__name__)

# Sources whose limits differ by less share a call. A model writes about as much as it reads, and may write 50
# tokens more, so few translations reach the lowest limit of a call.
SIMILAR_LIMITS = 25
PATIENCE = 2  # finished hypotheses for each beam, for n-best lists (Kasai et al., 2022, arXiv:2204.05424)
UNUSED_BEAM_SCORE = -1e9  # after a prefix, the score of unused beams
# Options of generation_config.json that CTranslate2 lacks, with the values that have no effect.
LACKING: dict[str, Any] = {
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": [],
    "sequence_bias": [],
    "force_words_ids": [],
    "guidance_scale": 1.0,
    "diversity_penalty": 0.0,
    "watermarking_config": None,
    "stop_strings": [],
    "max_time": None,
}


class CTranslate2Engine(Engine):
    """A translation model of CTranslate2.

    Args:
        folder: the model with its tokenizers.
        device: "cpu", "cuda" or "cuda:1"; None means a CUDA device if CTranslate2 finds one, else the CPU.
        compute_type: CTranslate2's compute type; "default" is the type of the weights if the device has it.

    Raises:
        UserError: CTranslate2 is not installed, or cannot load the model; it lacks the device, the type on
            that device, or an option of the folder's `generation_config.json`.
    """

    name = "ctranslate2"
    supports = frozenset(
        {
            *("num_beams", "length_penalty", "no_repeat_ngram_size", "repetition_penalty"),
            *("suppress_sequences", "min_length", "prefix"),
        }
    )

    def __init__(
        self,
        folder: CTranslate2Folder,
        device: str | torch.device | None = None,
        compute_type: str = "default",
    ):
        check_engine(None)
        _check_generation_config(folder)
        self.folder = folder
        self.generation_config = folder.generation_config
        self.source_positions = folder.source_positions
        # Scoring adds an end token to a hypothesis without one.
        self.target_positions = folder.target_positions and folder.target_positions - 1
        self._target_tokens = {number: token for token, number in folder.target_ids.items()}
        self._translator = _load(folder, device, compute_type)

    def check(self, options: SearchOptions, start_options: dict[str, int]) -> None:
        """See `Engine.check`; also check the repetition penalty of a beam search, and a fixed first token."""
        super().check(options, start_options)
        if options.num_beams > 1 and (penalty := self._repetition_penalty(options)) != 1:
            raise UserError(
                f"repetition_penalty={penalty} with num_beams={options.num_beams} is not supported by "
                f"engine={self.name}, whose beam search applies it before the softmax; use num_beams=1, or "
                "engine=torch"
            )
        fixed = self.folder.config.get("decoder_start_token")
        asked = self._target_tokens.get(start_options.get("decoder_start_token_id", -1))
        if None not in (asked, fixed) and asked != fixed:
            raise UserError(
                f"the target language is {asked!r}, and engine={self.name} begins targets with {fixed!r}; "
                f"set decoder_start_token to null in {self.folder.path / 'config.json'}, or use engine=torch"
            )

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
        call = _Call(self._options(options, n_best), self._start(start_options), self._forced(start_options))
        rows = [
            _Row(self._source(source), limit, self._least(demand), self._prefix(demand))
            for source, limit, demand in zip(sources, limits, demands, strict=True)
        ]
        with _known_failures():
            found = self._hypotheses(rows, call)
            is_changed = call.changes_probabilities or any(row.least or row.prefix for row in rows)
            if is_changed and (with_scores or options.num_beams > 1):
                if options.num_beams > 1:
                    found = self._with_prefix_only_hypotheses(rows, found, call)
                found = self._scored(rows, found, call)
        self._check_finite(found)
        best = [ranked(outputs, options)[:n_best] for outputs in found]
        if with_scores:
            return best
        return [[replace(output, log_prob=None) for output in outputs] for outputs in best]

    def _source(self, token_ids: list[int]) -> list[str]:
        """Return the tokens of a source without the special tokens that the engine adds."""
        config, tokens = (
            self.folder.config,
            [self.folder.source_tokens.get(i, self._unknown) for i in token_ids],
        )
        first = 1 if config.get("add_source_bos") and tokens[:1] == [config["bos_token"]] else 0
        last = -1 if config.get("add_source_eos") and tokens[-1:] == [config["eos_token"]] else None
        return tokens[first:last]

    @property
    def _unknown(self) -> str:
        return self.folder.config.get("unk_token") or "<unk>"

    def _start(self, start_options: dict[str, int]) -> list[str]:
        """Return the first token of a target; nothing if config.json fixes it."""
        if self.folder.config.get("decoder_start_token") is not None:
            return []
        generation: Any = self.generation_config
        known = generation.decoder_start_token_id
        start = start_options.get(
            "decoder_start_token_id", generation.bos_token_id if known is None else known
        )
        return [self._target_tokens[start]]

    def _forced(self, start_options: dict[str, int]) -> list[str]:
        """Return the tokens that every target begins with, after its first token."""
        forced = start_options.get("forced_bos_token_id", self.generation_config.forced_bos_token_id)
        return [] if forced is None else [self._target_tokens[forced]]

    def _options(self, options: SearchOptions, n_best: int) -> dict[str, Any]:
        """Return the options of `translate_batch`, which are the same for all sources."""
        generation: Any = self.generation_config
        ngram = options.no_repeat_ngram_size
        patience = PATIENCE if n_best > 1 else 1
        return {
            "beam_size": options.num_beams,
            "num_hypotheses": options.num_beams * patience,
            "patience": patience,
            "length_penalty": 0,
            "no_repeat_ngram_size": (generation.no_repeat_ngram_size if ngram is None else ngram) or 0,
            "suppress_sequences": self._suppressed(options) or None,
            "repetition_penalty": self._repetition_penalty(options),
            "max_input_length": 0,  # else it truncates sources
            "end_token": [self._target_tokens[end] for end in self.end_token_ids],
            "return_end_token": True,
            "return_scores": True,
        }

    def _repetition_penalty(self, options: SearchOptions) -> float:
        of_model: Any = self.generation_config.repetition_penalty
        penalty = options.repetition_penalty
        return (of_model if penalty is None else penalty) or 1.0

    def _least(self, demand: Demands) -> int:
        """Return the minimum tokens of a target before its end token; `min_length` counts the start token."""
        generation: Any = self.generation_config
        of_model = generation.min_new_tokens
        if of_model is None:
            of_model = (generation.min_length or 0) - 1
        return max(0, of_model, demand.min_length - 1)

    def _prefix(self, demand: Demands) -> list[str]:
        return [self._target_tokens[token] for token in demand.prefix]

    def _suppressed(self, options: SearchOptions) -> list[list[str]]:
        """Return the token sequences that the options and generation_config.json exclude from outputs.

        Sequences with tokens that the engine lacks, such as Marian's padding, are left out.
        """
        generation: Any = self.generation_config
        sequences = [
            *(generation.bad_words_ids or ()),
            *([token] for token in generation.suppress_tokens or ()),
            *options.suppress_sequences,
        ]
        known = [ids for ids in sequences if all(token in self._target_tokens for token in ids)]
        return [[self._target_tokens[token] for token in ids] for ids in known]

    def _hypotheses(self, rows: list[_Row], call: _Call) -> list[list[Output]]:
        """Return all hypotheses of each source.

        CTranslate2 has one length limit for all sources of a call. If all hypotheses found under a limit are
        complete, every higher limit gives the same hypotheses: an open hypothesis is less probable than all
        of them, and continuing it makes it even less probable. So sources with similar limits share a call
        with the lowest of these limits. Sources with an incomplete hypothesis are searched again with their
        own limit, if it is higher.
        """
        found: dict[int, list[Output]] = {}
        again: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for group in _similar(rows):
            lowest = min(rows[number].limit for number in group)
            for number, outputs in self._translate(rows, group, lowest, call).items():
                found[number] = outputs
                if rows[number].limit > lowest and not all(output.complete for output in outputs):
                    row = rows[number]
                    again[row.limit, row.least, bool(row.prefix)].append(number)
        for (limit, *_), group in again.items():
            found |= self._translate(rows, group, limit, call)
        return [found[number] for number in range(len(rows))]

    def _translate(
        self, rows: list[_Row], group: list[int], limit: int, call: _Call
    ) -> dict[int, list[Output]]:
        """Return all hypotheses of each source of a group, by number; all have the same minimum length."""
        least = min(limit, rows[group[0]].least)
        options = {**call.options, "max_decoding_length": limit, "min_decoding_length": least}
        prefixes = [[*call.start, *call.forced, *rows[number].prefix] for number in group]
        sources = [rows[number].source for number in group]
        given = prefixes if any(prefixes) else None
        results = self._translator.translate_batch(sources, given, **options)
        ends, ids = {*options["end_token"]}, self.folder.target_ids
        return {
            number: [
                Output([ids[token] for token in tokens], tokens[-1] in ends, score)
                for tokens, score in zip(result.hypotheses, result.scores, strict=True)
                if score > UNUSED_BEAM_SCORE
            ]
            for number, result in zip(group, results, strict=True)
        }

    def _with_prefix_only_hypotheses(
        self, rows: list[_Row], found: list[list[Output]], call: _Call
    ) -> list[list[Output]]:
        """Add the hypotheses that end directly after their prefixes.

        CTranslate2 accepts an end token there only if no other token is more probable. With K beams,
        transformers accepts it if it is among the K most probable tokens.
        """
        prefixes = [[*call.forced, *row.prefix] if row.prefix else [] for row in rows]
        group = [
            number
            for number, prefix in enumerate(prefixes)
            if prefix and rows[number].least <= len(prefix) < rows[number].limit
        ]
        if not group:
            return found
        options = {**call.options, "beam_size": 1, "num_hypotheses": call.options["beam_size"], "patience": 1}
        options["end_token"] = [self._unknown]  # alternatives do not include the token that ends a search
        results = self._translator.translate_batch(
            [rows[number].source for number in group],
            [[*call.start, *prefixes[number]] for number in group],
            **options,
            return_alternatives=True,
            min_decoding_length=0,
            max_decoding_length=1 + max(len(prefixes[number]) for number in group),
        )
        found = [*found]
        for number, result in zip(group, results, strict=True):
            length = len(prefixes[number])
            for tokens in result.hypotheses:
                if tokens[length : length + 1] and tokens[length] in call.options["end_token"]:
                    bare = [self.folder.target_ids[token] for token in tokens[: length + 1]]
                    if all(output.token_ids != bare for output in found[number]):
                        found[number] = [*found[number], Output(bare, True)]
        return found

    def _scored(self, rows: list[_Row], found: list[list[Output]], call: _Call) -> list[list[Output]]:
        """Return hypotheses with the model's own log-probabilities."""
        end = self.folder.config["eos_token"]  # scoring adds it
        sources = [row.source for row, outputs in zip(rows, found, strict=True) for _ in outputs]
        targets = [[self._target_tokens[token] for token in output.token_ids] for output in chain(*found)]
        given = [[*call.start, *(target[:-1] if target[-1] == end else target)] for target in targets]
        longest = 1 + max(map(len, given))
        scored = self._translator.score_batch(
            sources,
            given,
            max_input_length=0,
            max_batch_size=most_rows(longest * len(self._target_tokens)),
        )
        num_forced = len(call.forced)
        sums = iter(
            {
                "log_prob": sum(result.log_probs[: len(target)]),
                "forced_log_prob": sum(result.log_probs[:num_forced]),
            }
            for result, target in zip(scored, targets, strict=True)
        )
        return [[replace(output, **next(sums)) for output in outputs] for outputs in found]

    def _check_finite(self, found: list[list[Output]]) -> None:
        """Raise a RunError if a score is NaN or infinite."""
        if not all(math.isfinite(output.log_prob or 0.0) for output in chain(*found)):
            raise RunError(
                f"the model's scores are not finite numbers in {self._translator.compute_type}; try dtype "
                "float32, or use another checkpoint"
            )


@dataclass(frozen=True)
class _Row:
    """A source and the constraints on its target.

    Args:
        source: its tokens.
        limit: maximum tokens of its target, the end token included.
        least: minimum tokens of its target before the end token.
        prefix: tokens that its target begins with, after the tokens of the call.
    """

    source: list[str]
    limit: int
    least: int
    prefix: list[str]


@dataclass(frozen=True)
class _Call:
    """The settings that all calls of a search share.

    Args:
        options: options of `translate_batch`.
        start: the first token of a target; empty if config.json fixes it.
        forced: tokens that every target begins with, after its first token.
    """

    options: dict[str, Any]
    start: list[str]
    forced: list[str]

    @property
    def changes_probabilities(self) -> bool:
        """Whether the search excludes or penalizes tokens; its probabilities are then not the model's."""
        excludes = self.options["no_repeat_ngram_size"] or self.options["suppress_sequences"]
        return bool(self.forced or excludes or self.options["repetition_penalty"] != 1)


def _similar(rows: Sequence[_Row]) -> Iterator[list[int]]:
    """Yield groups of row numbers with equal minimum lengths and similar limits, with or without prefixes.

    If a row of a call has a prefix, the others may not end with their first token.
    """
    group: list[int] = []
    keys = [(bool(row.prefix), row.least, -row.limit) for row in rows]
    for number in sorted(range(len(rows)), key=keys.__getitem__):
        if group and not _share_a_call(rows[group[0]], rows[number]):
            yield group
            group = []
        group.append(number)
    yield group


def _share_a_call(first: _Row, row: _Row) -> bool:
    is_alike = (bool(first.prefix), first.least) == (bool(row.prefix), row.least)
    return is_alike and first.limit - row.limit < SIMILAR_LIMITS


def _check_generation_config(folder: CTranslate2Folder) -> None:
    """Raise a UserError if generation_config.json has an option or a token that the engine lacks."""
    generation = folder.generation_config
    for name, neutral in LACKING.items():
        value = getattr(generation, name, None)
        if value is not None and value != neutral:
            raise UserError(
                f"{folder.path / 'generation_config.json'} has {name}={value}, which is not supported by "
                "engine=ctranslate2; remove it, or use engine=torch"
            )
    known = {*folder.target_ids.values()}
    for name in ("eos_token_id", "forced_bos_token_id"):
        value = getattr(generation, name)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and token not in known:
                raise UserError(
                    f"{folder.path / 'generation_config.json'} has {name}={token}, and the model has no such "
                    "token; correct it"
                )


def _load(folder: CTranslate2Folder, device: str | torch.device | None, compute_type: str) -> Any:
    """Return a `ctranslate2.Translator` that uses as many threads as torch."""
    import ctranslate2

    kind, index = _device(device)
    known = sorted(ctranslate2.get_supported_compute_types(kind, index))
    if compute_type not in ("default", *known):
        raise UserError(
            f"dtype {compute_type!r} is not supported by engine=ctranslate2 on this {kind}; it has "
            f"{', '.join(known)}"
        )
    verbosity = ctranslate2.get_log_level()
    ctranslate2.set_log_level(logging.ERROR)  # its warnings about types are replaced by the one below
    try:
        translator = ctranslate2.Translator(
            str(folder.path),
            kind,
            device_index=index,
            compute_type=compute_type,
            intra_threads=torch.get_num_threads(),
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"CTranslate2 cannot load {folder.path} ({one_line(error)}); export the model again"
        ) from error
    finally:
        ctranslate2.set_log_level(verbosity)
    half = folder.half_precision
    if compute_type == "default" and half and half not in translator.compute_type.split("_"):
        logger.warning(
            f"{folder.path} has weights of {half}, which this {kind} computes with as "
            f"{translator.compute_type}; they are no faster here."
        )
    return translator


def _device(device: str | torch.device | None) -> tuple[str, int]:
    """Return CTranslate2's name of a device, and the device's index."""
    import ctranslate2

    count = ctranslate2.get_cuda_device_count()
    if device is None:
        return ("cuda" if count else "cpu"), 0
    try:
        known = torch.device(device)
    except RuntimeError as error:
        raise UserError(
            f"device {str(device)!r} cannot be used here ({one_line(error)}); try 'cpu'"
        ) from error
    if known.type != "cpu" and not (known.type == "cuda" and (known.index or 0) < count):
        raise UserError(
            f"device {str(device)!r} cannot be used by engine=ctranslate2 here: it has the CPU and {count} "
            "CUDA devices; try 'cpu'"
        )
    return known.type, known.index or 0


@contextmanager
def _known_failures() -> Iterator[None]:
    """Convert CTranslate2's errors to those that other engines raise."""
    try:
        yield
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise torch.OutOfMemoryError(one_line(error)) from error
        raise RunError(f"CTranslate2 fails: {one_line(error)}") from error
