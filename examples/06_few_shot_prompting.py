"""Train a small model that learns from examples in its prompt, and measure how well. Takes half a minute.

    python examples/06_few_shot_prompting.py [OUTPUT_DIR]

Every training text counts in one of five languages. From "7:" alone, the model cannot know the language of
the answer; an example in the prompt shows it, and no weight changes. `vaswani prompt` does the same with a
task, such as tasks/sentiment.
"""

import random
import sys

from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani.data.tokenization import train_tokenizer
from vaswani.inference.prompt.prompting import Prompter
from vaswani.inference.prompt.task import Task

output_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/example-prompting"

NUMERALS = {
    "Danish": "nul en to tre fire fem seks syv otte ni",
    "English": "zero one two three four five six seven eight nine",
    "German": "null eins zwei drei vier fünf sechs sieben acht neun",
    "Spanish": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "Turkish": "sıfır bir iki üç dört beş altı yedi sekiz dokuz",
}
rows = {
    language: [{"digit": digit, "numeral": numeral} for digit, numeral in enumerate(numerals.split())]
    for language, numerals in NUMERALS.items()
}


def training_text() -> str:
    shown = random.sample(rows[random.choice(list(rows))], 6)
    return ", ".join(f"{row['digit']}: {row['numeral']}" for row in shown)


random.seed(0)
texts = [training_text() for _ in range(10_000)]
tokenizer = train_tokenizer(texts, vocab_size=400, purpose="causal")
shape = {"d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 8, "decoder_ffn_dim": 256}
config = VaswaniDecoderConfig(
    vocab_size=len(tokenizer), **shape, max_position_embeddings=128, dropout=0.0, initializer_range=0.1
)
trainer = Trainer(
    VaswaniForCausalLM(config),
    TrainingArguments(output_dir, num_train_epochs=1, per_device_train_batch_size=32, learning_rate=5e-3),
    DataCollatorForLanguageModeling(tokenizer, mlm=False),
    [tokenizer(text) for text in texts],
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()

prompter = Prompter.from_pretrained(output_dir)
options = {"prompt": "{digit}:", "answer": " {numeral}", "separator": ", ", "generate": True}
for language, examples in rows.items():
    task = Task(**options, examples=examples, test=examples)  # no row is an example in its own prompt
    accuracies = [f"{prompter.answer(task, shots).accuracy:3.0f} %" for shots in (0, 1, 2, 4)]
    print(f"{language:<8} right with 0, 1, 2 and 4 shots: {', '.join(accuracies)}")
answer = prompter.answer(task, shots=2).answers[7]
print(f"{answer.prompt!r} -> {answer.given!r}")
