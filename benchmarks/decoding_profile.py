r"""Where a step of decoding spends its time, part by part, beside the least that the machine needs for it.

    python benchmarks/decoding_profile.py [--data FILE|FOLDER] [--shape small base] [--beams 1 4]
        [--quick] [--json]

A stopwatch around the functions of a search counts each moment for the innermost of them; what none of them
takes is transformers' `generate`. The sentences are decoded one by one, on one thread. The model has learned
nothing and never ends, so each output has as many tokens as its source.

The least time of a step reads the decoder's weights and the projection's once, and computes their products,
at the speeds of a large copy and of a large product on this machine, the longer of both. A model that fits
into the processor's cache can read faster than that.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from statistics import median
from typing import Any

import torch

import side_by_side
from decoding_speed import Batch, Setting, by_generate, make_batches, never_ending, train
from vaswani.insight.arithmetic.calibration import copy_bandwidth, matrix_peak
from vaswani.kernels import beam_search, decoder_native
from vaswani.kernels.search import modules_of_each_step
from vaswani.kernels.search_cache import SearchCache

REST = "transformers' generate, and the rest"
PREPARING, FIRST = "preparing the search", "first token, and inputs of steps"
TOKENS = 20  # of a source


class Stopwatch:
    """Counts the seconds of functions, without those of the functions that they call."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = 0.0

    def switch(self) -> None:
        """Count the time since the last switch for the innermost function."""
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time counts for this part."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self._running.pop()

        return timed


def watch(stopwatch: Stopwatch) -> None:
    """Wrap the functions of a search with the stopwatch, for the rest of the process."""
    compiled = decoder_native.library()
    if compiled is None:
        raise SystemExit("the decoder's steps are not compiled here: see vaswani env")
    places: list[tuple[Any, str, str]] = [
        (decoder_native.NativeStep, "__init__", PREPARING),
        (decoder_native.NativeStep, "_bind", PREPARING),
        (decoder_native.NativeStep, "logits", "Python around the decoder"),
        (compiled, "vaswani_decoder_step", "decoder and output projection, C++"),
        (beam_search, "best_tokens", "best tokens, C++"),
        (beam_search.TokenChooser, "best", "processors of scores"),
        (beam_search.BeamSearch, "advance", "choosing beams"),
        (SearchCache, "reorder_cache", "reordering beams"),
        (SearchCache, "next_logits", FIRST),
    ]
    for owner, name, part in places:
        setattr(owner, name, stopwatch.wrap(part, getattr(owner, name)))


def least_seconds(model: Any, num_beams: int, peak: float, bandwidth: float) -> float:
    """Return the minimum time of a step."""
    linears = [each for each in modules_of_each_step(model) if isinstance(each, torch.nn.Linear)]
    weights = sum(each.weight.numel() for each in linears)
    return max(4 * weights / bandwidth, 2 * num_beams * weights / peak)


def profile(model: Any, batches: list[Batch], num_beams: int, rounds: int, stopwatch: Stopwatch) -> Counter:
    """Return the seconds of each part in one step: medians over the rounds, after a warm-up round."""
    decode = stopwatch.wrap(REST, by_generate(model))
    found: list[Counter[str]] = []
    for _ in range(rounds + 1):
        stopwatch.seconds.clear()
        steps = sum(len(output) for batch in batches for output in decode(batch, num_beams))
        found.append(Counter({part: seconds / steps for part, seconds in stopwatch.seconds.items()}))
    return Counter({part: median(each[part] for each in found[1:]) for part in found[-1]})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    side_by_side.corpus_arguments(parser)
    parser.add_argument("--shape", nargs="+", choices=side_by_side.SHAPES, default=["small", "base"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--sentences", type=side_by_side.count, default=20)
    parser.add_argument("--rounds", type=side_by_side.count, default=5)
    parser.add_argument("--quick", action="store_true", help="a tiny model and two sentences: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.sentences, args.rounds = ["tiny"], 2, 1
    side_by_side.quiet()
    torch.set_num_threads(1)
    peak, bandwidth = matrix_peak(torch.device("cpu")), copy_bandwidth()
    corpus = side_by_side.load_tokens(args, None)
    stopwatch, rows, results = Stopwatch(), [], {}
    watch(stopwatch)
    for shape in args.shape:
        torch.manual_seed(0)
        model = never_ending(train(corpus, shape, 0)).eval()
        model.generation_config.max_length = None
        encoder = model.get_encoder()
        encoder.forward = stopwatch.wrap("encoder", encoder.forward)
        for num_beams in args.beams:
            setting = Setting(num_beams, 1, args.sentences, 1, TOKENS)
            batches = [*make_batches(corpus.test, setting, reference_lengths=True)]
            found = profile(model, batches, num_beams, args.rounds, stopwatch)
            name = f"{side_by_side.describe_shape(side_by_side.our_config(shape))}, {num_beams} beams"
            least, total = least_seconds(model, num_beams, peak, bandwidth), found.total()
            for part, seconds in [*found.most_common(), ("a step", total), ("least", least)]:
                rows.append((name, part, f"{seconds * 1e6:.0f}", f"{seconds / total:.0%}"))
            results[name] = {**found, "least": least}
    print(side_by_side.describe_setting(corpus.name, [1]))
    print(f"peaks: {peak / 1e9:.0f} GFLOP/s in a large product, {bandwidth / 1e9:.1f} GB/s in a large copy\n")
    side_by_side.print_table(("model and search", "part", "µs", "share"), rows)
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
