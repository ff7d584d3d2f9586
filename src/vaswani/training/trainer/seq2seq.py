"""A `Seq2SeqTrainer` based on `BaseTrainer`: smoothed labels, and evaluation by decoding.

Section numbers refer to Vaswani et al. (2017), arXiv:1706.03762.
"""

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from transformers import GenerationConfig, PreTrainedTokenizerBase, Seq2SeqTrainer
from transformers.generation.configuration_utils import METADATA_FIELDS
from transformers.trainer_utils import PredictionOutput

from vaswani.data.collation import source_mask
from vaswani.data.columns import Integers
from vaswani.data.tokenization import save_tokenizers
from vaswani.errors import UserError
from vaswani.evaluation.text_metrics import TextMetrics
from vaswani.inference.decoding import EXTRA_LENGTH, GNMTLengthPenalty, LengthLimits
from vaswani.inference.position_limits import position_limit
from vaswani.kernels.projected_loss import TokenLoss
from vaswani.model.losses import token_loss_function
from vaswani.training.config.training_arguments import TrainingArguments
from vaswani.training.trainer.adapted import base_model
from vaswani.training.trainer.base import BaseTrainer
from vaswani.training.trainer.consistency import PASSES, check_passes_differ, consistency_loss, twice
from vaswani.training.trainer.data_loaders import lengths_of
from vaswani.training.trainer.objective import Count


class Trainer(BaseTrainer, Seq2SeqTrainer):
    """Trains an encoder-decoder model on a tokenized parallel corpus.

    Data sets hold `input_ids` and `labels` (lists of token ids), and may hold `target`, the texts that
    `TextMetrics` compares with in place of the decoded labels, and `direction`, for scores of each. A batch
    holds `args.max_tokens_per_batch` tokens at most, padding included. Predictions come back in the order of
    the data set, each row once, whatever the batches and the number of processes.

    Args:
        target_processing_class: the target tokenizer, if it is not the source's; saved with checkpoints.
        model: as for `Seq2SeqTrainer`.
        args: the arguments, of vaswani's class.
        kwargs: as for `BaseTrainer` and `Seq2SeqTrainer`.

    Raises:
        UserError: `args` are not `vaswani.TrainingArguments`; the model is no encoder-decoder;
            `args.consistency_weight` is set, and the model has no dropout; or metrics are given that would
            never be called.
    """

    arguments_class = TrainingArguments
    args: TrainingArguments

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        target_processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ):
        super().__init__(model, args, **kwargs)
        check_is_encoder_decoder(self.model, "model")
        self.target_processing_class = target_processing_class or self.processing_class
        self._check_metrics()
        check_passes_differ(self.args.consistency_weight, self.model.config, self.model)
        takes = signature(base_model(self.model).forward).parameters
        self.label_smoother = None
        self.forward_options = {"use_cache": False}
        if self.compute_loss_func is None and "smoothing" in takes:
            # Our models smooth labels themselves, in one pass with the output projection.
            self.forward_options["smoothing"] = self.args.label_smoothing_factor
        elif self.compute_loss_func is None:
            self.compute_loss_func = self._loss_of_logits
        self.meter.passes = PASSES if self.args.consistency_weight else 1
        self._generation_options: dict[str, Any] = {}  # options of the current evaluation
        self._set_generation(self.model)

    def call_model_init(self, trial: Any = None) -> Any:
        """As in transformers; each new model gets the same search settings for evaluations."""
        model = super().call_model_init(trial)
        self._set_generation(model)
        return model

    def _set_generation(self, model: Any) -> None:
        """Save the search settings as defaults of `generate`, which reads α as its length penalty."""
        # The metadata would say that its values are those of the model's configuration.
        found = model.generation_config.to_dict().items()
        generation = GenerationConfig(**{name: value for name, value in found if name not in METADATA_FIELDS})
        generation.num_beams = self.args.generation_num_beams
        penalty = GNMTLengthPenalty(self.args.generation_length_penalty)
        generation.length_penalty = float(penalty) if self._searches else None
        model.generation_config = generation

    def _check_metrics(self) -> None:
        """Raise `UserError` for metrics that would never be called."""
        if self.compute_metrics is not None and not self.args.predict_with_generate:
            raise UserError(
                "compute_metrics scores what is generated, and predict_with_generate=False generates "
                "nothing; set predict_with_generate=True, or leave compute_metrics out"
            )
        if self.preprocess_logits_for_metrics is not None:
            raise UserError(
                "preprocess_logits_for_metrics has no effect: evaluations keep what is generated, no logits"
            )

    # ---------------------------------------------------------------------------------------------- training

    def row_lengths(self, dataset: Any) -> tuple[Integers, Integers | None]:
        """Tokens of each source [N] and of each target [N], which only a prediction may lack."""
        sources = lengths_of(dataset, "input_ids", "source_length")
        is_to_predict = dataset is not self.train_dataset and len(sources) > 0
        if is_to_predict and not {"labels", "target_length"} & {*dataset[0]}:
            return sources, None
        return sources, lengths_of(dataset, "labels", "target_length")

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Count = None,
    ) -> Any:
        """As in `BaseTrainer`; with a `consistency_weight`, training makes two passes (see `consistency`)."""
        if self._passes_twice:
            labels, inputs = inputs["labels"], twice(inputs)
            if self.compute_loss_func is None:
                inputs["token_loss"] = self._consistency_loss(labels, num_items_in_batch)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    @property
    def _passes_twice(self) -> bool:
        return self.model.training and self.args.consistency_weight > 0

    def _consistency_loss(self, labels: torch.Tensor, num_items_in_batch: Count) -> TokenLoss:
        return consistency_loss(
            labels,
            num_items_in_batch,
            weight=self.args.consistency_weight,
            label_smoothing=self.args.label_smoothing_factor,
            means=self.loss_means,
        )

    def _loss_of_logits(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Count = None
    ) -> torch.Tensor:
        """The loss of a model of transformers."""
        if self._passes_twice:
            of_one_pass = labels.chunk(PASSES)[0]
            return self._consistency_loss(of_one_pass, num_items_in_batch).from_logits(outputs.logits)
        smoothing = self.args.label_smoothing_factor
        return token_loss_function(outputs.logits, labels, num_items_in_batch, smoothing)

    # -------------------------------------------------------------------------------------------- evaluation

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As in transformers; `gen_kwargs` are options of `generate`."""
        self._generation_options = self._complete(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As in transformers; `gen_kwargs` are options of `generate`."""
        self._generation_options = self._complete(gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def _complete(self, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Options of `generate`; a missing number of beams or length is taken from the arguments."""
        options = {name: value for name, value in gen_kwargs.items() if value is not None}
        defaults = {"num_beams": self.args.generation_num_beams}
        if not options.keys() & {"max_length", "max_new_tokens"}:
            defaults["max_length"] = self.args.generation_max_length
        return {name: value for name, value in defaults.items() if value is not None} | options

    def scores(
        self, dataset: Any, predictions: np.ndarray | None, labels: np.ndarray | None
    ) -> dict[str, float]:
        """As in `BaseTrainer`; if a data set has target texts, `TextMetrics` compares with them."""
        metrics = self.compute_metrics
        columns = getattr(dataset, "column_names", None) or ()
        has_texts = "target" in columns
        if predictions is None or not has_texts or not isinstance(metrics, TextMetrics):
            return super().scores(dataset, predictions, labels)
        directions = dataset["direction"][:] if "direction" in columns else ()
        return metrics.compare(metrics.decode(predictions), dataset["target"][:], directions)

    def prediction_step(  # type: ignore[override]  # the loss is a tensor, whatever the library's hints say
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: Any = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Loss per token, generated token ids [rows, length] and labels of one batch.

        Decodes as in section 6.1: beam search with GNMT's length penalty and, unless a length was asked for,
        with at most 50 tokens more than each source has.
        """
        inputs = send_to_device(inputs, self.args.device)
        with torch.no_grad(), self.accelerator.autocast():
            has_labels = inputs.get("labels") is not None  # collators of the library set None
            loss = self.compute_loss(model, inputs).detach() if has_labels else None
            if prediction_loss_only or not self.args.predict_with_generate:
                return loss, None, None
            options: dict[str, Any] = {**self._generation_options, **gen_kwargs}
            if self._searches:
                options.setdefault("length_penalty", GNMTLengthPenalty(self.args.generation_length_penalty))
            if not {"max_length", "max_new_tokens"} & options.keys():
                limits = source_mask(inputs).sum(1) + EXTRA_LENGTH
                if (positions := position_limit(self.model)) is not None:
                    limits = limits.clamp(max=positions)
                options["max_length"] = 1 + int(limits.max())  # the decoder's start token counts
                options["stopping_criteria"] = [LengthLimits(limits)]
            source = {"input_ids": inputs["input_ids"], "attention_mask": source_mask(inputs)}
            generated = self.model.generate(**source, **options)
        return loss, generated, inputs.get("labels")

    @property
    def _searches(self) -> bool:
        """True if evaluation keeps several beams, so that the length penalty has an effect."""
        return (self.args.generation_num_beams or 1) > 1

    # ------------------------------------------------------------------------------------------- checkpoints

    def save_tokenizers(self, folder: Path) -> None:
        """Write both tokenizers, or the one that both sides share."""
        if self.processing_class is not None:
            save_tokenizers(self.processing_class, self.target_processing_class, folder)


def check_is_encoder_decoder(model: torch.nn.Module, role: str) -> None:
    """Raise `UserError` if the model of this role is no encoder-decoder."""
    if not getattr(model.config, "is_encoder_decoder", False):
        raise UserError(
            f"the {role} is a {type(base_model(model)).__name__}, which is no encoder-decoder; give one, "
            "such as a VaswaniForConditionalGeneration (other models train with `vaswani pretrain` and "
            "`vaswani finetune`, or transformers' Trainer)"
        )
