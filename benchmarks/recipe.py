"""What each part of a recipe brings: `multi30k_tiny` with one change at a time, on the validation split.

    python benchmarks/recipe.py --data path/to/multi30k [--seeds 2] [--rows base "dropout 0.3" ...] [--bf16]
        [--picture FILE] [--json]

The base is the configuration multi30k_tiny with dropout 0.1: with more it needs many more updates. A
variation changes what its name says and nothing else. With batches of half or twice as many tokens there are
twice or half as many updates, so that all read as many tokens; R-Drop reads each twice and takes about twice
as long.

Perplexity is per token, without label smoothing; BLEU is cased, with 4 beams. Differences are to the base,
with 95 % intervals from the same resamples of the rows and from the spread over seeds. There is no peer.

What is there is not trained again, and a training that was stopped goes on from its checkpoint (its seconds
then count from there). `--rows` shares the work between processes; rows that are not there yet are left out.
"""

from pathlib import Path

from variations import BASE, Study, Variation, run

VARIATIONS = {
    BASE: Variation({}),
    "dropout 0": Variation({"dropout": 0.0}),
    "dropout 0.2": Variation({"dropout": 0.2}),
    "dropout 0.3": Variation({"dropout": 0.3}),
    "no BPE-dropout": Variation({"bpe_dropout": 0.0}),
    "BPE-dropout 0.1": Variation({"bpe_dropout": 0.1}),
    "no label smoothing": Variation({"label_smoothing_factor": 0.0}),
    "R-Drop, weight 1": Variation({"consistency_weight": 1.0}),
    "word dropout 0.1": Variation({"word_dropout": 0.1}),
    "rate 2e-3": Variation({"learning_rate": 2e-3}),
    "rate 6e-3": Variation({"learning_rate": 6e-3}),
    "batches of 2,048": Variation({"max_tokens_per_batch": 2048}, updates=2),
    "batches of 8,192": Variation({"max_tokens_per_batch": 8192}, updates=0.5),
}

STUDY = Study("multi30k_tiny", {"dropout": 0.1}, VARIATIONS, updates=3000, output=Path("runs/recipe"))

if __name__ == "__main__":
    run(STUDY, str(__doc__))
