"""Train a small model that reads dates in four languages, and translate with it. Takes half a minute.

    python examples/01_train_and_translate.py [OUTPUT_DIR]

`vaswani train --config dates` does the same for many languages; this script shows its parts.
"""

import sys

from vaswani import Trainer, TrainingArguments, Translator, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import tokenize_corpus
from vaswani.data.sources.dates import generate_dates
from vaswani.data.tokenization import train_tokenizer
from vaswani.evaluation.text_metrics import TextMetrics

output_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/example"

# A corpus: texts in columns `source` and `target`. No day of the test split is in the training split.
corpus = generate_dates("en,de,fr,es", train_rows=10_000, validation_rows=200, test_rows=200)
print(corpus["train"][0])

# One vocabulary for both sides, so that source, target and output can share one embedding matrix.
texts = (text for row in corpus["train"] for text in (row["source"], row["target"]))
tokenizer = train_tokenizer(texts, vocab_size=400)
rows = {split: tokenize_corpus(corpus[split], tokenizer, tokenizer) for split in corpus}

model = VaswaniForConditionalGeneration(
    VaswaniConfig(
        vocab_size=len(tokenizer),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
    )
)
print(f"{model.num_parameters():,} parameters")

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=output_dir,
        max_steps=600,
        max_tokens_per_batch=2000,
        learning_rate=4e-3,
        warmup_steps=100,
        eval_strategy="no",
        save_strategy="no",
        logging_steps=100,
    ),
    train_dataset=rows["train"],
    eval_dataset=rows["validation"],
    data_collator=Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id),
    processing_class=tokenizer,
    compute_metrics=TextMetrics(tokenizer),
)
trainer.train()
print(trainer.evaluate())
trainer.save_model()  # with the tokenizer

translator = Translator.from_pretrained(output_dir)
test = corpus["test"].select(range(8))
for source, target, translation in zip(
    test["source"], test["target"], translator(test["source"]), strict=True
):
    print(f"{source}  ->  {translation}" + ("" if translation == target else f"  (should be {target})"))
