"""The effect of each part of a recipe: `multi30k_tiny` with one change at a time, on the validation split.

    python benchmarks/recipe.py --data path/to/multi30k [--seeds 2] [--rows base "dropout 0.3" ...] [--bf16]
        [--picture FILE] [--json]

The base is the configuration multi30k_tiny with dropout 0.1, because more dropout needs many more
updates. A variation changes only what its name says. With batches of half or twice as many tokens there are
twice or half as many updates, so that all trainings read equally many tokens; R-Drop reads each twice and
takes about twice as long.

Perplexity is per token, without label smoothing; BLEU is cased, with 4 beams. Differences are to the base,
with 95 % intervals from the same resamples of the rows and from the spread over seeds. There is no peer.

Finished models are not trained again, and a stopped training resumes from its checkpoint (its seconds then
count from there). `--rows` shares the work between processes; unfinished rows are left out.
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
