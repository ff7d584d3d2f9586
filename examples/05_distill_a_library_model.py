"""Distil a MarianMT model of transformers into a smaller vaswani model. Takes about a minute and a half.

    python examples/05_distill_a_library_model.py [OUTPUT_DIR]

The teacher is any encoder-decoder with the student's vocabulary. `vaswani distill` does the same from a
configuration; there the teacher can also translate the training sources, and a report compares both models.
"""

import sys

from transformers import MarianConfig, MarianMTModel

from vaswani import (
    DistillationObjectives,
    DistillationTrainer,
    Trainer,
    TrainingArguments,
    Translator,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
)
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import tokenize_corpus
from vaswani.data.sources.dates import generate_dates
from vaswani.data.tokenization import train_tokenizer

output_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/example-distil"

corpus = generate_dates("en,de", train_rows=20_000, validation_rows=200, test_rows=200)
texts = (text for row in corpus["train"] for text in (row["source"], row["target"]))
tokenizer = train_tokenizer(texts, vocab_size=400)
rows = {split: tokenize_corpus(corpus[split], tokenizer, tokenizer) for split in corpus}
ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}


def shape(width: int, layers: int) -> dict[str, int]:
    sizes = {"layers": layers, "attention_heads": 4, "ffn_dim": 4 * width}
    stacks = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()}
    return {"vocab_size": len(tokenizer), "d_model": width, **stacks, **ids}


def train(kind, model, folder, **options):
    arguments = TrainingArguments(
        output_dir=f"{output_dir}/{folder}",
        max_steps=400,
        max_tokens_per_batch=2000,
        learning_rate=3e-3,
        warmup_steps=100,
        save_strategy="no",
        logging_steps=100,
    )
    options |= {"train_dataset": rows["train"], "processing_class": tokenizer}
    trainer = kind(model=model, args=arguments, data_collator=Seq2SeqCollator(0, 1), **options)
    trainer.train()
    trainer.save_model()
    return model


teacher = MarianMTModel(MarianConfig(**shape(width=64, layers=2), max_position_embeddings=64))
train(Trainer, teacher, "teacher")

student = VaswaniForConditionalGeneration(VaswaniConfig(**shape(width=48, layers=1), dropout=0.0))
weights = {"soft_target_weight": 5, "label_weight": 2, "cosine_weight": 1}  # DistilBERT's
objectives = DistillationObjectives(**weights, temperature=2)
train(DistillationTrainer, student, "student", teacher=teacher, objectives=objectives)
print(f"teacher {teacher.num_parameters():,} parameters, student {student.num_parameters():,}")

translator = Translator.from_pretrained(f"{output_dir}/student")
test = corpus["test"][:8]
translations = translator(test["source"])
for source, target, translation in zip(test["source"], test["target"], translations, strict=True):
    print(f"{source}  ->  {translation}" + ("" if translation == target else f"  (should be {target})"))
