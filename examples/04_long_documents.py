"""Add sparse attention to a BERT of transformers for long documents, and compare times. Takes a minute.

    python examples/04_long_documents.py [OUTPUT_DIR]

The weights are random here; `BertForMaskedLM.from_pretrained` works as well. A model of this package
needs no change: set `encoder_attention: sparse` in its configuration, as `long_summarization` does.
"""

import sys
import time

import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

import vaswani

output_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/example-long"
length = 4096

config = BertConfig(
    vocab_size=8_000,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=length,
    attention_probs_dropout_prob=0.0,
)
model = BertForMaskedLM(config).train()
tokens = torch.randint(5, config.vocab_size, (1, length))


def seconds_per_step() -> float:
    """Return the seconds of a forward and backward pass over one document, the better of two."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


dense = seconds_per_step()
vaswani.sparsify(model, block_size=64, window=3, num_global=2, num_random=3)
sparse = seconds_per_step()
print(f"{length:,} tokens: {dense:.2f} s a step with dense attention, {sparse:.2f} s with sparse")

# The saved model loads as a sparse model; without this package, loading fails and gives no dense model.
model.eval().save_pretrained(output_dir)
loaded = AutoModelForMaskedLM.from_pretrained(output_dir)
with torch.no_grad():
    equal = torch.equal(loaded(tokens).logits, model(tokens).logits)
print(f"loaded again as {type(loaded).__name__}, with {'equal' if equal else 'OTHER'} outputs")
