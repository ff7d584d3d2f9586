"""Fine-tuning of a pre-trained model to answer questions by spans of texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModelForQuestionAnswering, EvalPrediction, PreTrainedModel

from vaswani.data.evenly_spread import limit_rows
from vaswani.data.given_tokenizers import prepare_for_classification
from vaswani.data.questions.question_rows import check_ids, load_questions
from vaswani.data.questions.windows import Window, WindowCollator, tokenize_questions, windows_of
from vaswani.data.sources.corpus import Corpus
from vaswani.data.sources.corpus_spec import SPLITS
from vaswani.data.text_codec import Tokenizers
from vaswani.evaluation.answer_metrics import AnswerMetric
from vaswani.evaluation.answers import AnswerEvaluation, references_of
from vaswani.evaluation.final import evaluate_finished, metric_entries, record, show_example
from vaswani.evaluation.summary import metric_lines
from vaswani.files.atomic_files import write_json
from vaswani.inference.answer.answering import CONFIG_FIELD
from vaswani.inference.answer.spans import answers_of
from vaswani.training.config.question_arguments import QuestionAnsweringConfig
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.checks import check_attention_kernel
from vaswani.training.runs.models import Pretrained, model_with_head, open_pretrained
from vaswani.training.runs.trained_parts import check_trainable, only_trained_parts
from vaswani.training.trainer.question_answering import QuestionTrainer

PREDICTIONS, NBEST, NULL_ODDS = (
    "predictions.json",
    "nbest_predictions.json",
    "null_odds.json",
)  # SQuAD's names


class QuestionAnsweringRun(BaseRun):
    """Trains a pre-trained model to predict the first and the last token of an answer."""

    config: QuestionAnsweringConfig

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model that the run starts from; a decoder's tokenizer ends the question and the text."""
        name = str(self.config.model.model)
        return open_pretrained(name, AutoModelForQuestionAnswering, prepare_for_classification)

    # ----------------------------------------------------------------------------------- before the questions

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics of answers."""
        return list(AnswerMetric.names)

    def check(self) -> None:
        """Raise `UserError` for what would fail only after the rows are read, or in an evaluation."""
        self.pretrained.check_length(self.config.data.max_length)
        self.config.data.windows.check(self.pretrained.tokenizer)
        kernel = self.config.model.attn_implementation
        check_attention_kernel(AutoModelForQuestionAnswering, self.pretrained.config, kernel)
        check_trainable(self.config, self.pretrained, AutoModelForQuestionAnswering)

    # --------------------------------------------------------------------------------- questions and windows

    def read(self, splits: Sequence[str] = SPLITS) -> Corpus:
        return load_questions(self.config.data.corpus, splits)

    def load(self) -> Corpus:
        """Read the questions of all splits, at most `max_test_rows` of the test split."""
        self.corpus = super().load()
        splits = self.corpus.splits
        for split in splits.keys() - {"train"}:
            check_ids(splits[split], split)
        if "test" in splits:
            splits["test"] = limit_rows(splits["test"], self.config.training.max_test_rows)
        return self.corpus

    def _with_fewer_test_rows(self, splits: dict[str, Any]) -> dict[str, Any]:
        """Return all windows: `load` has left out test questions already."""
        return splits

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Dataset]:
        """Windows of each split."""
        splits = {}
        for split, rows in corpus.splits.items():
            lengths, evaluates = self.config.data.windows, split != "train"
            splits[split] = tokenize_questions(
                rows, tokenizers[0], lengths, with_offsets=evaluates, report=corpus.reports[split]
            )
            self.check_budget(split, max(splits[split]["length"][:]))
        return splits

    def describe_used_rows(self, split: str, rows: Dataset, kept: int) -> str:
        """Describe the number of windows and, for a shortened split, the number of questions."""
        used = len(set(rows["row"][:])) if "row" in rows.column_names else kept
        return f"{f', of which {used:,} are used' if used < kept else ''}, in {len(rows):,} windows"

    # ---------------------------------------------------------------------------------------------- the model

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The tokenizer of the pre-trained model."""
        return self.pretrained.tokenizer, self.pretrained.tokenizer

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The pre-trained model with a head for spans, or one of its shape with new weights.

        Its configuration keeps the options that a `QuestionAnswerer` needs to answer in the same way.
        """
        model = model_with_head(
            self.config, self.pretrained, AutoModelForQuestionAnswering, {"num_labels": 2}
        )
        answers = self.config.answers
        options = {**vars(self.config.data.windows), "max_answer_length": answers.max_answer_length}
        if answers.null_score_diff_threshold is not None:
            options["null_score_diff_threshold"] = answers.null_score_diff_threshold
        setattr(model.config, CONFIG_FIELD, options)
        return only_trained_parts(model, self.config)

    # ------------------------------------------------------------------------------- trainer and evaluation

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> QuestionTrainer:
        """A trainer for the windows."""
        tokenizer, answers = tokenizers[0], self.config.answers
        self.scores = AnswerScores(
            self.corpus.splits, splits, answers.n_best, answers.null_score_diff_threshold
        )
        return QuestionTrainer(
            max_answer_length=answers.max_answer_length,
            n_best=answers.n_best,
            train_data_collator=WindowCollator(int(tokenizer.pad_token_id)),
            data_collator=WindowCollator(int(tokenizer.pad_token_id), with_places=True),
            processing_class=tokenizer,
            compute_metrics=self.scores,
            **self.trainer_options(splits, model),
        )

    def evaluate(
        self, trainer: QuestionTrainer, splits: dict[str, Any], tokenizers: Tokenizers
    ) -> dict[str, float]:
        """Evaluate on the test split, or else on the validation split; print and save scores and answers.

        The threshold for giving no answer is first chosen on the validation split, and saved with the model.
        """
        if "test" in splits and "validation" in splits and self.scores.finds_threshold("validation"):
            self.scores.split = "validation"
            trainer.evaluate(splits["validation"], metric_key_prefix="validation")
        self.scores.split = "test" if "test" in splits else "validation"
        scores = evaluate_finished(trainer, splits, self._show_scores)
        if self.scores.threshold is not None:
            getattr(trainer.model.config, CONFIG_FIELD)["null_score_diff_threshold"] = self.scores.threshold
            trainer.save_model(_internal_call=True)
        return scores

    def _show_scores(self, split: str, windows: Dataset, scores: dict[str, float]) -> dict[str, Any]:
        """Show scores and some answers, and write all answers; returns the content of `evaluation.json`."""
        evaluation, questions = self.scores.latest, self.corpus.splits[split]
        metrics = metric_entries(AnswerMetric.names, evaluation.estimates)
        search: dict[str, Any] = {"max_answer_length": self.config.answers.max_answer_length}
        if self.scores.threshold is not None:
            search["null_score_diff_threshold"] = round(self.scores.threshold, 4)
        examples = evaluation.examples(questions)
        content = record(split, len(questions), metrics, unit="questions", search=search, examples=examples)
        write_answers(self.config.output_dir, questions["id"][:], evaluation)
        _show(content, scores[f"{split}_loss"])
        return content


class AnswerScores:
    """The `compute_metrics` of question answering; holds the latest answers.

    Args:
        questions: the questions of each split.
        windows: the windows of each split.
        n_best: number of spans to keep for each question.
        threshold: threshold for giving no answer; None to choose the best one on the validation split, if
            some of its questions have no answer.

    Attributes:
        split: the name of the split that is evaluated.
        latest: the results of its evaluation.
    """

    def __init__(
        self, questions: dict[str, Any], windows: dict[str, Any], n_best: int, threshold: float | None
    ):
        self.questions, self.windows, self.n_best, self.threshold = questions, windows, n_best, threshold
        self.is_given = threshold is not None
        self.split = "validation"
        self.latest: AnswerEvaluation
        self._read: dict[str, tuple[list[str], list[Window], list[list[str]]]] = {}

    def finds_threshold(self, split: str) -> bool:
        """Return True if an evaluation of this split chooses the threshold."""
        return not self.is_given and split == "validation" and not all(self._data_of_split(split)[2])

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Score the spans of all windows [W, 1 + N, 3] (see `best_spans`) against the answers."""
        contexts, windows, references = self._data_of_split(self.split)
        answers = answers_of(
            contexts, windows, np.asarray(prediction.predictions), self.n_best, self.threshold
        )
        self.latest = AnswerEvaluation(answers, references)
        if self.finds_threshold(self.split):
            self.threshold = self.latest.best_threshold()
            self.latest = self.latest.with_threshold(self.threshold)
        return self.latest.scores()

    def _data_of_split(self, split: str) -> tuple[list[str], list[Window], list[list[str]]]:
        """The texts, windows and right answers of a split."""
        if split not in self._read:
            questions = self.questions[split]
            windows = list(windows_of(self.windows[split]))
            self._read[split] = questions["context"][:], windows, references_of(questions)
        return self._read[split]


def write_answers(folder: Path, names: Sequence[str], evaluation: AnswerEvaluation) -> None:
    """Write the files that SQuAD's script reads: answers, best spans and the odds of no answer, by id."""
    pairs = list(zip(names, evaluation.answers, strict=True))
    contents = {
        PREDICTIONS: {name: answer.text for name, answer in pairs},
        NBEST: {name: [vars(span) for span in answer.spans] for name, answer in pairs},
        NULL_ODDS: {name: answer.null_odds for name, answer in pairs},
    }
    for file, content in contents.items():
        write_json(folder / file, content)


def _show(content: dict[str, Any], loss: float) -> None:
    print(f"\n{content['split']} ({content['rows']:,} questions): loss {loss:.3f}")
    print(*metric_lines(content["metrics"]), sep="\n")
    if (threshold := content["search"].get("null_score_diff_threshold")) is not None:
        print(f"null_score_diff_threshold {threshold:.2f}")
    print()
    for example in content["examples"]:
        answer, right = (example[name] or "no answer" for name in ("prediction", "reference"))
        show_example((example["context"], example["question"]), answer, right)
