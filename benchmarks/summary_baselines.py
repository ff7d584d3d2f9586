"""ROUGE of summaries that need no model: the first words of an article, and the summary of another article.

    python benchmarks/summary_baselines.py --data FILE|FOLDER [--source-field text] [--target-field summary]
        [--words 225] [--json]

A summarizer that scores below the first words has not learned to choose; one that scores as the summaries of
other articles has learned only their language. Scores are those of `vaswani evaluate` for `task:
summarization`, with 95 % intervals over the articles.
"""

import argparse
import json
from collections.abc import Sequence

import side_by_side
from vaswani.cli.splits import located
from vaswani.data.evenly_spread import limit_rows
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.resampling import resampled_scores
from vaswani.evaluation.text_metrics import METRICS_OF_TASK, score_texts

TASK = "summarization"
QUICK_ROWS = 8


def scored(summaries: Sequence[str], references: Sequence[str]) -> dict[str, Estimate]:
    """Return each ROUGE with its interval."""
    scores, _ = score_texts(summaries, references, TASK)
    resampled = resampled_scores(summaries, references, TASK)
    return {name: Estimate.from_resamples(scores[name], found) for name, found in resampled.items()}


def main() -> None:
    """Score and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="file or folder of a corpus")
    parser.add_argument("--split", default="test")
    parser.add_argument("--source-field", default="text")
    parser.add_argument("--target-field", default="summary")
    parser.add_argument("--words", nargs="+", type=int, default=[100, 225], help="numbers of first words")
    parser.add_argument("--quick", action="store_true", help="a few rows: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    side_by_side.quiet()

    split, place = located([args.data], args.split)
    spec = CorpusSpec(**place, source_field=args.source_field, target_field=args.target_field)
    rows = load_corpus(spec, [split]).splits[split]
    rows = limit_rows(rows, QUICK_ROWS if args.quick else None)
    articles, references = rows["source"][:], rows["target"][:]
    baselines = {
        f"the first {words} words": [" ".join(article.split()[:words]) for article in articles]
        for words in args.words
    }
    baselines["the summary of the next article"] = [*references[1:], references[0]]

    found = {name: scored(summaries, references) for name, summaries in baselines.items()}
    mean_words = sum(len(reference.split()) for reference in references) / len(references)
    print(f"{args.data}, {split}: {len(rows):,} summaries of {mean_words:.0f} words on average\n")
    side_by_side.print_table(
        ("baseline", *METRICS_OF_TASK[TASK]),
        [
            (name, *(f"{score.value:.1f} [{score.low:.1f}, {score.high:.1f}]" for score in scores.values()))
            for name, scores in found.items()
        ],
    )
    if args.json:
        print(
            json.dumps(
                {
                    name: {metric: vars(score) for metric, score in scores.items()}
                    for name, scores in found.items()
                }
            )
        )


if __name__ == "__main__":
    main()
