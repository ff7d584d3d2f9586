"""Train with transformers' own `Seq2SeqTrainer` and data collator, as with any other model. Takes a minute.

    python examples/02_plain_seq2seq_trainer.py [OUTPUT_DIR]

Only the corpus, its tokenizer and one import come from this package; the import registers the model with the
Auto classes. Your own data set and tokenizer work as well.
"""

import sys

from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vaswani  # noqa: F401 - registers "vaswani" with the Auto classes
from vaswani.data.sources.dates import generate_dates
from vaswani.data.tokenization import train_tokenizer

output_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/example-plain"

corpus = generate_dates("en,de", train_rows=20_000, validation_rows=200, test_rows=200)
texts = (text for row in corpus["train"] for text in (row["source"], row["target"]))
tokenizer = train_tokenizer(texts, vocab_size=400)


def tokenize(rows):
    return {**tokenizer(rows["source"]), "labels": tokenizer(text_target=rows["target"])["input_ids"]}


rows = corpus.map(tokenize, batched=True, remove_columns=corpus["train"].column_names)

shape = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
}
heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
config = AutoConfig.for_model("vaswani", vocab_size=len(tokenizer), **shape, **heads)
model = AutoModelForSeq2SeqLM.from_config(config)

trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir=output_dir,
        max_steps=600,
        per_device_train_batch_size=64,
        train_sampling_strategy="group_by_length",
        learning_rate=3e-3,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=100,
        label_smoothing_factor=0.1,
        predict_with_generate=True,
        generation_max_length=20,
        save_strategy="no",
        logging_steps=100,
    ),
    train_dataset=rows["train"],
    eval_dataset=rows["validation"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
)
trainer.train()
print(trainer.evaluate())
trainer.save_model()

# The model loads by its name wherever the package is imported.
model = AutoModelForSeq2SeqLM.from_pretrained(output_dir)
tokenizer = AutoTokenizer.from_pretrained(output_dir)
test = corpus["test"][:8]
generated = model.generate(**tokenizer(test["source"], padding=True, return_tensors="pt"), max_length=20)
translations = tokenizer.batch_decode(generated, skip_special_tokens=True)
for source, target, translation in zip(test["source"], test["target"], translations, strict=True):
    print(f"{source}  ->  {translation}" + ("" if translation == target else f"  (should be {target})"))
