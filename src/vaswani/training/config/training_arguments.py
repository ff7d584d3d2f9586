"""How a model is trained: the fields of transformers' training arguments with the paper's defaults, and more.

Section numbers refer to Vaswani et al. (2017), arXiv:1706.03762.
"""

import importlib.util
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
import transformers
from transformers import Seq2SeqTrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_utils import SaveStrategy, SchedulerType
from transformers.utils import logging

from vaswani.bounds import LARGEST_ALPHA, MAX_BEAMS
from vaswani.errors import UserError
from vaswani.evaluation.score_names import LOWER_IS_BETTER
from vaswani.training.config.options import check_values, option
from vaswani.training.config.schedule import paper_peak_learning_rate
from vaswani.training.launch.processes import (
    choose_device,
    join_processes,
    requested_fsdp_size,
    trains_on_cpu,
)

logger = logging.get_logger(__name__)

JSON_FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # fields that may name a JSON file
RANKING_SCHEDULES = ("reduce_lr_on_plateau", "greedy")  # they rank models, by default by their loss
REPORTING_PACKAGES = ("tensorboard", "trackio")


def names_of_dictionaries(arguments: type) -> list[str]:
    """Return the fields that hold a dictionary and may be given as text."""
    return [
        name
        for name, hint in get_type_hints(arguments).items()
        if str in (kinds := get_args(hint)) and any((get_origin(kind) or kind) is dict for kind in kinds)
    ]


def _name(choice: Enum | str) -> str:
    return choice.value if isinstance(choice, Enum) else choice


@dataclass
class BaseTrainingArguments(transformers.TrainingArguments):
    """transformers' training arguments with the paper's defaults and a few more fields, for any model.

    Raises:
        UserError: the fields contradict each other.
    """

    learning_rate: float | None = option(  # type: ignore[assignment]  # None is resolved before the optimizer is built
        None, "Peak learning rate. Default: (d_model * warmup_steps)^-0.5 (equation 3).", above=0
    )
    lr_scheduler_type: SchedulerType | str = field(
        default=SchedulerType.INVERSE_SQRT,
        metadata={
            "help": "Schedule: inverse_sqrt (the paper's: linear warm-up, then 1/sqrt(step)) or another name "
            "in transformers."
        },
    )
    warmup_steps: float = option(
        4000, "Warm-up updates; below 1, a fraction of all updates (section 5.3).", at_least=0
    )
    adam_beta2: float = option(0.98, "Adam's beta2 (section 5.3).", at_least=0, below=1)
    adam_epsilon: float = option(1e-9, "Adam's epsilon (section 5.3).", above=0, at_most=1)
    max_tokens_per_batch: int = option(
        8192,
        "Most tokens of a batch on one device, targets and padding included; for training and evaluation.",
        at_least=1,
    )
    early_stopping_patience: int | None = option(
        None,
        "Number of evaluations without a better metric_for_best_model after which training stops.",
        at_least=1,
    )
    fsdp_size: int = option(
        1, "Processes over which all parameters are sharded (FSDP2); each has its own batches.", at_least=1
    )
    tensor_parallel_size: int = option(
        1, "Processes over which heads and inner features are split; they share batches.", at_least=1
    )
    non_finite_loss: Literal["stop", "skip"] = option(
        "stop", "If a loss or gradient is NaN or infinite: stop, or skip the update."
    )
    report_to: list[str] = option(
        ["none"], "Where to log: none, tensorboard, trackio or another name in transformers."
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Search for parameters without gradient in each update. These models use all parameters."
    )
    evaluate_test: bool = option(
        True,
        "Score the final model on the test split; otherwise on the validation split, and leave test alone.",
    )
    max_test_rows: int | None = option(
        None, "Number of test rows to evaluate on, evenly spread. Default: all.", at_least=1
    )
    average_checkpoints: int | None = option(
        None,
        "Number of last checkpoints to average at the end; the mean is evaluated and saved (section 6.1).",
        at_least=1,
    )
    use_cache: bool = option(True, "Decode with cached keys and values; saved in the model's configuration.")
    restore_callback_states_from_checkpoint: bool = option(
        True, "When resuming, restore the early-stopping counter too."
    )

    def __post_init__(self) -> None:
        check_values(self)
        self._check_dictionaries()
        self._check_ranking()
        metric = (self.metric_for_best_model or "").removeprefix("eval_")
        if self.greater_is_better is None and metric in LOWER_IS_BETTER:
            self.greater_is_better = False
        choose_device()
        if self.bf16 and not (trains_on_cpu(self.use_cpu) or torch.accelerator.is_available()):
            raise UserError("bf16=true finds no GPU; add use_cpu=true to train in bfloat16 on the CPU")
        self.fsdp_size = requested_fsdp_size() or self.fsdp_size
        store = join_processes(int(self.ddp_timeout), trains_on_cpu(self.use_cpu))
        super().__post_init__()
        del store  # the process group holds it now
        self._check_reporting()
        self._check_averaging()
        if self.lr_scheduler_type == SchedulerType.INVERSE_SQRT and self.lr_scheduler_kwargs:
            raise UserError(
                f"lr_scheduler_type=inverse_sqrt takes no lr_scheduler_kwargs, got {self.lr_scheduler_kwargs}"
            )

    @property
    def n_gpu(self) -> int:
        """Number of GPUs that this process uses: at most one.

        With more, transformers would split batches with `DataParallel`, which these losses do not support.
        """
        if (found := super().n_gpu) > 1:
            logger.warning_once(f"There are {found} GPUs, and one is used; --num_processes {found} uses all.")
        return min(found, 1)

    @property
    def shards_model(self) -> bool:
        """True if several processes hold one copy of the model together."""
        return self.fsdp_size * self.tensor_parallel_size > 1

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        found = {}
        if self.max_steps > 0:
            found["num_train_epochs"] = f"max_steps={self.max_steps}"
        if self.lr_scheduler_type == SchedulerType.CONSTANT:
            found["warmup_steps"] = "lr_scheduler_type=constant"
        if not self.evaluate_test:
            found["max_test_rows"] = "evaluate_test=False"
        for kind in ("eval", "save", "logging"):
            if (strategy := _name(getattr(self, f"{kind}_strategy"))) != "steps":
                found[f"{kind}_steps"] = f"{kind}_strategy={strategy}"
        return found

    def _check_reporting(self) -> None:
        for name in self.report_to:
            if name not in INTEGRATION_TO_CALLBACK:
                known = ", ".join(["none", *sorted(INTEGRATION_TO_CALLBACK)])
                raise UserError(f"report_to={name} is unknown; choose among {known}")
            if name in REPORTING_PACKAGES and importlib.util.find_spec(name) is None:
                raise UserError(f"report_to={name} needs a package: pip install 'vaswani[{name}]'")

    def _check_ranking(self) -> None:
        """Raise `UserError` for an option that ranks models without an evaluation or a metric.

        The library has checks of its own, which name options that the user has not given, and no remedy.
        """
        turned_off_by = {}
        if self.early_stopping_patience is not None:
            turned_off_by["early_stopping_patience"] = "--early_stopping_patience none"
        if self.save_strategy == SaveStrategy.BEST:
            turned_off_by["save_strategy=best"] = "--save_strategy steps"
        if self.load_best_model_at_end:
            turned_off_by["load_best_model_at_end"] = "--load_best_model_at_end false"
        evaluates, saves = _name(self.eval_strategy), _name(self.save_strategy)
        uses_loss = self.load_best_model_at_end or _name(self.lr_scheduler_type) in RANKING_SCHEDULES
        metric = self.metric_for_best_model or ("loss" if uses_loss else None)
        if turned_off_by and (evaluates == "no" or metric is None):
            raise UserError(
                f"{next(iter(turned_off_by))} needs an eval_strategy, which is {evaluates} "
                f"(give steps or epoch), and a metric_for_best_model, which is {metric}; or give "
                f"{' '.join(turned_off_by.values())}"
            )
        if self.load_best_model_at_end and saves not in (evaluates, "best"):
            raise UserError(
                "load_best_model_at_end needs the same save_strategy and eval_strategy, which are "
                f"{saves} and {evaluates}; give --save_strategy {evaluates}, or "
                "--load_best_model_at_end false"
            )

    def _check_averaging(self) -> None:
        """Raise `UserError` for options with which the last checkpoints cannot be averaged at the end."""
        if self.average_checkpoints is None:
            return
        given = f"average_checkpoints={self.average_checkpoints}"
        if self.load_best_model_at_end:
            raise UserError(
                f"{given} and load_best_model_at_end=True exclude each other: the final model is the mean of "
                "the last checkpoints, or the best one; leave one out"
            )
        if self.save_strategy not in (SaveStrategy.STEPS, SaveStrategy.EPOCH):
            raise UserError(
                f"{given} needs save_strategy steps or epoch, which is {_name(self.save_strategy)}"
            )
        for name in ("deepspeed", "fsdp"):
            if getattr(self, name):
                raise UserError(f"{given} does not work with {name}; leave one out, or use fsdp_size")
        kept, ranks = self.save_total_limit or 0, self.metric_for_best_model is not None
        if 0 < kept < self.average_checkpoints + ranks:
            reason = f"; with metric_for_best_model={self.metric_for_best_model} the best is kept too" * ranks
            raise UserError(
                f"{given} is more than save_total_limit={kept} keeps{reason}; set save_total_limit to at "
                f"least {self.average_checkpoints + ranks}"
            )

    def _check_dictionaries(self) -> None:
        """Raise `UserError` for a text that is neither JSON nor the path of a JSON file."""
        for name in names_of_dictionaries(type(self)):
            value = getattr(self, name)
            if not isinstance(value, str) or (name in JSON_FILES and Path(value).is_file()):
                continue
            try:
                is_right = isinstance(json.loads(value), dict)
            except ValueError:
                is_right = False
            if not is_right:
                file = ", or the path of such a file" if name in JSON_FILES else ""
                raise UserError(f"{name}={value!r}: expected JSON such as '{{\"name\": 1}}'{file}")

    def push_options(self) -> dict[str, Any]:
        """Return the options of a push to the Hub."""
        return {"token": self.hub_token, "revision": self.hub_revision, "private": self.hub_private_repo}

    def resolve_learning_rate(self, d_model: int) -> None:
        """Replace a missing learning rate by the peak of equation 3.

        Raises:
            UserError: the formula does not apply to this schedule or warm-up.
        """
        if self.learning_rate is not None:
            return
        if self.lr_scheduler_type != SchedulerType.INVERSE_SQRT:
            raise UserError(f"lr_scheduler_type={_name(self.lr_scheduler_type)} needs a learning_rate")
        self.learning_rate = paper_peak_learning_rate(d_model, self.warmup_steps)

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As in transformers, but a fraction leaves at least one update after the warm-up."""
        steps = super().get_warmup_steps(num_training_steps)
        return min(steps, num_training_steps - 1) if self.warmup_steps < 1 else steps


@dataclass
class FinetuningDefaults:
    """The usual defaults of fine-tuning (Devlin et al., 2019, appendix A.3).

    Training arguments inherit from this class and from their own base. This class has no base itself: a
    dataclass copies all fields of each base, so the fields of a common base would undo the changes of the
    other base.
    """

    learning_rate: float = option(5e-5, "Peak learning rate.", above=0)
    lr_scheduler_type: SchedulerType | str = field(
        default=SchedulerType.LINEAR,
        metadata={
            "help": "Schedule: linear (to zero at the end), inverse_sqrt or another name in transformers."
        },
    )
    warmup_steps: float = option(0.1, "Warm-up updates; below 1, a fraction of all updates.", at_least=0)
    adam_beta2: float = option(0.999, "Adam's beta2.", at_least=0, below=1)
    adam_epsilon: float = option(1e-8, "Adam's epsilon.", above=0, at_most=1)


@dataclass
class FinetuningTrainingArguments(FinetuningDefaults, BaseTrainingArguments):  # type: ignore[misc]  # learning_rate is not optional here
    """As `BaseTrainingArguments`, with the usual defaults of fine-tuning and smaller batches."""

    max_tokens_per_batch: int = option(
        4096,
        "Most tokens of a batch on one device, padding included; for training and evaluation.",
        at_least=1,
    )


@dataclass
class TrainingArguments(BaseTrainingArguments, Seq2SeqTrainingArguments):
    """Training arguments of an encoder-decoder: label smoothing, and evaluation by decoding."""

    label_smoothing_factor: float = option(
        0.1, "Label smoothing epsilon (section 5.4); 0 turns it off.", at_least=0, below=1
    )
    consistency_weight: float = option(
        0.0,
        "R-Drop's alpha (arXiv:2106.14448; 5 there): each batch passes twice through the model, with "
        "different dropout, and a KL divergence between both predictions is added to the loss.",
        at_least=0,
    )
    predict_with_generate: bool = option(True, "Evaluate by generated text, not by the loss alone.")
    generation_num_beams: int | None = option(
        4, "Beam size in evaluation (section 6.1).", at_least=1, at_most=MAX_BEAMS
    )
    generation_length_penalty: float = option(
        0.6,
        "Length penalty: exponent of the length that divides a beam's log-probability.",
        at_least=-LARGEST_ALPHA,
        at_most=LARGEST_ALPHA,
    )


@dataclass
class ContinuedTrainingArguments(FinetuningDefaults, TrainingArguments):  # type: ignore[misc]  # learning_rate is not optional here
    """As `TrainingArguments`, with the usual defaults of fine-tuning."""
