"""What the losses of distillation add to a training step of a student, forward and backward.

    python benchmarks/distillation_speed.py [--quick] [--json]

The student has 5 encoder layers and 1 decoder layer of width 128 and a vocabulary of 4,000 tokens; its
teacher is twice as wide, with 4 of each. A batch has 136 rows of 15 source and 15 target tokens, all
random. There is no peer, because no other library distils
encoder-decoders.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset

import side_by_side
from vaswani import (
    DistillationObjectives,
    DistillationTrainer,
    TrainingArguments,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
)

SOFT_TARGETS = {"soft_target_weight": 1.0, "label_weight": 0.5}
LABELS = {"soft_target_weight": 0.0, "label_weight": 1.0}
TOP_K = 16


def model(width: int, encoder_layers: int, decoder_layers: int, vocab_size: int) -> Any:
    """A model with random weights."""
    torch.manual_seed(0)
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    inner = {"encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    depth = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    return VaswaniForConditionalGeneration(
        VaswaniConfig(vocab_size=vocab_size, d_model=width, **heads, **inner, **depth)
    )


def random_batch(rows: int, length: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """Tokens, and distributions of a teacher over 16 of them and the rest."""
    torch.manual_seed(0)
    ids, labels = (torch.randint(3, vocab_size, (rows, length)) for _ in range(2))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
        "decoder_input_ids": labels.roll(1, dims=1),
        "teacher_log_probs": torch.randn(rows, length, TOP_K + 1).log_softmax(-1),
        "teacher_tokens": torch.rand(rows, length, vocab_size).topk(TOP_K).indices,
    }


def step_of(
    student: Any, batch: dict[str, torch.Tensor], objectives: dict[str, float], teacher: Any, at_once: bool
) -> Callable[[], None]:
    """One training step of a student; the optimizer's part, which is the same for all, is left out."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = DistillationTrainer(
            model=student,
            teacher=teacher,
            objectives=DistillationObjectives(**objectives),
            args=TrainingArguments(output_dir=folder, use_cpu=True, learning_rate=1e-3),
            train_dataset=Dataset.from_dict({"input_ids": [[2]], "labels": [[2]]}),
        )
    if at_once:  # as for a student of the library: all logits, and then the loss
        trainer._student_takes_token_loss = False
    student.train()

    def step() -> None:
        student.zero_grad()
        trainer.compute_loss(student, dict(batch), num_items_in_batch=batch["labels"].numel()).backward()

    return step


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with a tiny model")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--rounds", type=side_by_side.count, default=10)
    args = parser.parse_args()
    side_by_side.quiet()
    torch.set_num_threads(1)
    width, rows, vocab_size, rounds = (16, 4, 40, 2) if args.quick else (128, 136, 4000, args.rounds)
    batch, teacher = random_batch(rows, 15, vocab_size), model(2 * width, 4, 4, vocab_size)
    student = model(width, 5, 1, vocab_size)
    steps = {
        ("labels", "as they come"): step_of(student, batch, LABELS, None, at_once=False),
        ("labels", "all at once"): step_of(student, batch, LABELS, None, at_once=True),
        (f"labels, top {TOP_K} on disk", "as they come"): step_of(student, batch, SOFT_TARGETS, None, False),
        (f"labels, top {TOP_K} on disk", "all at once"): step_of(student, batch, SOFT_TARGETS, None, True),
        ("labels, teacher at work", "as they come"): step_of(student, batch, SOFT_TARGETS, teacher, False),
        ("labels, teacher at work", "all at once"): step_of(student, batch, SOFT_TARGETS, teacher, True),
    }
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in steps}
    for _ in range(1 + rounds):  # the first is warm-up
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    base = medians["labels", "as they come"]

    print(side_by_side.describe_setting("random numbers", [1]), end="\n\n")
    columns = ("learns", "logits", "ms per step", "× labels alone")
    table = [(*name, f"{1e3 * median:.0f}", f"{median / base:.2f}") for name, median in medians.items()]
    side_by_side.print_table(columns, table)
    if args.json:
        names = ("labels_at_once", "cached", "cached_at_once", "live", "live_at_once")
        ratios = [round(median / base, 3) for median in list(medians.values())[1:]]
        print(json.dumps(dict(zip(names, ratios, strict=True))))


if __name__ == "__main__":
    main()
