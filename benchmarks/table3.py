"""The paper's table 3 in small: one translator for each variation of the architecture (arXiv:1706.03762).

    python benchmarks/table3.py --data path/to/multi30k [--seeds 2] [--rows base "heads 1" ...]
        [--picture FILE] [--json]

All models have the vocabulary and the options of the configuration multi30k, see as many updates as the base,
and are scored on the validation split. The base has 4+4 layers of width 128, feed-forward layers of 256,
4 heads, and norms before the sub-layers. A variation changes only what its name says; the learning
rate, too, is that of the base.

Perplexity is per token of our vocabulary, without label smoothing; BLEU is cased, with 4 beams. Differences
are to the base, with 95 % intervals from the same resamples of the rows and from the spread over seeds. The
table also has the difference of the nearest row in the paper's table to its base, and whether ours has the
same sign: `yes`, `no`, or `open` if our interval contains 0. There is no peer.

Finished models are not trained again, and a stopped training resumes from its checkpoint (its seconds then
count from there). `--rows` shares the work between processes; unfinished rows are left out.
"""

from pathlib import Path
from typing import Any

from variations import BASE, Study, Variation, run


def both(**sizes: int) -> dict[str, Any]:
    """Fields of both stacks."""
    return {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()}


SHAPE: dict[str, Any] = {"d_model": 128, **both(layers=4, ffn_dim=256, attention_heads=4)}

VARIATIONS = {
    BASE: Variation({}),
    "heads 1": Variation(both(attention_heads=1), paper=(0.37, -0.9)),
    "heads 2": Variation(both(attention_heads=2), paper=(0.08, -0.3)),  # half of the base: the paper's 4
    "heads 8": Variation(both(attention_heads=8), paper=(-0.01, 0.0)),  # twice the base: its 16
    "key width 8": Variation({"key_dim": 8}, paper=(0.24, -0.7)),  # a quarter of the base: the paper's 16
    "key width 16": Variation({"key_dim": 16}, paper=(0.09, -0.4)),  # half of the base: its 32
    "layers 2+2": Variation(both(layers=2), paper=(1.19, -2.1)),
    "layers 6+6": Variation(both(layers=6), paper=(-0.04, -0.3)),
    "width 64": Variation({"d_model": 64}, paper=(0.83, -1.3)),
    "width 256": Variation({"d_model": 256}, paper=(-0.26, 0.2)),
    "feed-forward 512": Variation(both(ffn_dim=512), paper=(-0.17, 0.4)),
    "dropout 0": Variation({"dropout": 0.0}, paper=(0.85, -1.2)),
    "dropout 0.3": Variation({"dropout": 0.3}, paper=(0.03, -0.3)),  # its 0.2
    "label smoothing 0": Variation({"label_smoothing_factor": 0.0}, paper=(-0.25, -0.5)),
    "learned positions": Variation({"position_embedding": "learned"}, paper=(0.0, -0.1)),
    "post-norm": Variation({"norm_order": "post"}),
    "separate embeddings": Variation(
        {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    ),
}

STUDY = Study("multi30k", SHAPE, VARIATIONS, updates=1500, output=Path("runs/table3"))

if __name__ == "__main__":
    run(STUDY, str(__doc__))
