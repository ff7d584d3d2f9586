"""Check that a change of the code changes no result: compare two checkouts with the same seeds.

    python benchmarks/compare_checkouts.py --before OLD/src --after NEW/src [--data FOLDER] [--quick]

Each checkout is copied first, and runs in its own process and folder, through the command line.
It compares: the built-in dates; every kind of training (losses, gradient norms, scores and final weights of
200 updates); trainings that the second checkout resumes from the first one's checkpoint at update 100;
translations with their scores, embeddings and answers to prompts; `student`, `combine` and `convert` in both
directions, bit by bit; and the outputs of the trained models, with dense and sparse attention.

`--data` is the folder of a parallel corpus (train.jsonl, validation.jsonl and test.jsonl with `en` and `de`,
such as Multi30k), which is translated too. Code that travels with a model, cards and timings are left out.

Prints a table with the largest relative difference of each comparison and the one that is allowed. The exit
status is 1 if any is larger, or if a command fails.
"""

import argparse
import dataclasses
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file, save_file

CLOSE = 1e-6  # allowed relative difference of losses and scores
EXACT = 0.0
ADDED_UP = 1e-4  # of weights after many updates, relative to the largest of their tensor

# What differs from run to run, or is text about the run.
UNCOMPARED_FILES = (".py", ".md", ".bin", ".png", ".pt", ".pth", ".npy.partial")
UNCOMPARED_NAMES = ("model_hashes.json", "manifest.json", "corpus.json", "training_config.yaml")
UNCOMPARED_KEYS = ("tokens_per_second", "tflops", "share_of_peak", "mfu", "total_flos", "auto_map")
UNCOMPARED_KEYS += ("train_loss",)  # the mean: of a resumed run, of its own updates
UNCOMPARED_KEYS += ("transformers_version", "intervals", "best_model_checkpoint", "stateful_callbacks")
UNCOMPARED_KEYS += ("_from_model_config",)  # of generation_config.json: where it comes from, no setting

SHAPE = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2}
SHAPE |= {f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")}
SHAPE |= {f"{stack}_ffn_dim": 128 for stack in ("encoder", "decoder")}
ENCODER = {name: value for name, value in SHAPE.items() if not name.startswith("decoder")}
DECODER = {name: value for name, value in SHAPE.items() if not name.startswith("encoder")}
# Blocks that the C++ kernel takes: PyTorch's operators may draw another dropout of the attention weights.
SPARSE = {"sparse_block_size": 16, "sparse_window_blocks": 1, "sparse_global_blocks": 1}
SPARSE |= {"sparse_random_blocks": 1}
PARTS = ("translation", "language_models", "finetuning", "distillation", "conversion")
TRAINING_COMMANDS = ("train", "pretrain", "finetune", "distill")
PAIRS = {"vocab_size": 500, "max_source_length": 64, "max_target_length": 64}
PAIRS |= {"generation_max_length": 40, "generation_num_beams": 2, "eval_strategy": "steps"}


# ------------------------------------------------------------------------------------------- what is compared


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A file or folder that both sides write, and the allowed difference.

    Args:
        name: name in the table.
        path: path of the file or folder, relative to the folder of a side.
        allowed: the largest relative difference that is allowed.
        after: path on the second side; None if it is the same.
    """

    name: str
    path: str
    allowed: float = EXACT
    after: str | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """A command that both sides run, or only the second, and the results to compare.

    Args:
        call: arguments of `vaswani`; or the name of a function of this file and its arguments.
        compared: the results of the command.
        only_after: whether only the second side runs it.
    """

    call: list[str]
    compared: list[Comparison]
    only_after: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a comparison."""

    comparison: Comparison
    values: int
    difference: float

    @property
    def is_equal(self) -> bool:
        """Whether the difference is allowed."""
        return self.difference <= self.comparison.allowed

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row."""
        verdict = "equal" if self.difference == 0 else "close" if self.is_equal else "DIFFERS"
        found, allowed = (f"{number:.1g}" for number in (self.difference, self.comparison.allowed))
        return (self.comparison.name, verdict, f"{self.values:,}", found, allowed)


class Plan:
    """The commands of a comparison, in order.

    Args:
        corpora: the folder that `write_corpora` fills.
        rows: number of rows of each corpus.
        updates: number of updates of each training.
        data: the folder of a parallel corpus, or None.
    """

    def __init__(self, corpora: Path, rows: int, updates: int, data: Path | None):
        self.corpora, self.rows, self.updates, self.data = corpora, rows, updates, data
        self.works: list[Work] = []

    def add(self, call: Iterable[Any], *compared: Comparison, only_after: bool = False) -> None:
        """Add a command."""
        self.works.append(Work(list(map(str, call)), list(compared), only_after))

    def train(self, name: str, command: str, options: dict[str, Any], resume: bool = True) -> None:
        """Add a training on both sides, and one that the second resumes from the first side's checkpoint."""
        common = {"max_steps": self.updates, "logging_steps": 1, "save_steps": self.updates // 2}
        common |= {"eval_steps": self.updates // 2, "warmup_steps": self.updates // 10, "use_cpu": True}
        common |= {"learning_rate": 3e-3, "max_tokens_per_batch": 1000, "disable_tqdm": True}
        options, run = common | options, f"runs/{name}"
        call = [command, *as_flags(options)]
        losses, weights = f"{self.updates} losses: {name}", f"weights after them: {name}"
        self.add(
            [*call, "--output_dir", run],
            Comparison(losses, f"{run}/trainer_state.json", CLOSE),
            Comparison(weights, f"{run}/model.safetensors", ADDED_UP),
        )
        if not resume:
            return
        checkpoint, resumed = f"../before/{run}/checkpoint-{self.updates // 2}", f"{run}-resumed"
        self.add(
            [*call, "--output_dir", resumed, "--resume_from_checkpoint", checkpoint],
            Comparison(
                f"{losses}, resumed", f"{run}/trainer_state.json", CLOSE, f"{resumed}/trainer_state.json"
            ),
            only_after=True,
        )

    def parts(self, names: Iterable[str]) -> list[Work]:
        """Return the commands of these parts."""
        for name in names:
            getattr(self, f"add_{name}")()
        if any(work.call[0] in TRAINING_COMMANDS for work in self.works):
            self.add(["outputs_of_models"], Comparison("outputs of models", "outputs.safetensors", CLOSE))
        return self.works

    def add_translation(self) -> None:
        """Add training, translating and scoring."""
        self.add(["write_dates", self.rows], Comparison("built-in dates", "dates"))
        corpora = {"dates": (files(Path("dates")), Path("dates/test.txt"))}
        if self.data is not None:
            rows = files(self.corpora / "pairs", splits=("train", "validation"))
            rows |= {"source_field": "en", "target_field": "de"}
            corpora["pairs"] = (rows, self.corpora / "pairs.txt")
        for name, (rows, texts) in corpora.items():
            self.train(name, "train", PAIRS | SHAPE | rows)
            for beams in (1, 4):
                output = f"{name}-{beams}.jsonl"
                options = {"model": f"runs/{name}", "input": texts, "output": output, "max_length": 40}
                self.add(
                    ["translate", *as_flags(options | {"num_beams": beams, "n_best": min(beams, 2)})],
                    Comparison(f"translations of {name}, {beams} beams", output, CLOSE),
                )
        options = {"model": "runs/dates", "data": "dates/test.jsonl", "output": "evaluated.txt"}
        self.add(
            ["evaluate", *as_flags(options | {"max_length": 40})],
            Comparison("translations that `evaluate` scores", "evaluated.txt"),
            Comparison("scores of the test split", "runs/dates/evaluation.json", CLOSE),
        )

    def add_language_models(self) -> None:
        """Add pre-training, embedding, prompting, and conversion and combination of the models."""
        texts = files(self.corpora / "texts", splits=("train", "validation"))
        texts |= {"vocab_size": 500, "max_length": 64, "eval_strategy": "steps"}
        self.train("masked", "pretrain", ENCODER | texts | {"max_position_embeddings": 64})
        self.train("next-sentence", "pretrain", ENCODER | texts | {"next_sentence": True}, resume=False)
        causal = texts | {"objective": "causal", "max_position_embeddings": 64}
        self.train("causal", "pretrain", DECODER | causal)
        attention = {"encoder_attention": "sparse", "norm_order": "pre"}
        self.train("sparse-masked", "pretrain", ENCODER | texts | SPARSE | attention, resume=False)
        attention = {"decoder_attention": "sparse", "pack": False}
        self.train("sparse-causal", "pretrain", DECODER | causal | SPARSE | attention, resume=False)
        for model in ("masked", "sparse-masked", "causal", "sparse-causal"):
            output = f"{model}.safetensors"
            options = {"model": f"runs/{model}", "input": self.corpora / "texts.txt", "output": output}
            self.add(
                ["embed", *as_flags(options | {"max_length": 64}), "--truncation"],
                Comparison(f"vectors of texts: {model}", output, CLOSE),
            )
        options = {"model": "runs/causal", "task": self.corpora / "task.yaml", "shots": "0,1"}
        self.add(
            ["prompt", *as_flags(options | {"output": "answers.jsonl"})],
            Comparison("answers to prompts", "answers.jsonl", CLOSE),
        )
        self.add(
            ["convert", "runs/next-sentence", "theirs/trained", "--to", "bert"],
            Comparison("`convert` of a trained model to bert", "theirs/trained", ADDED_UP),
        )
        for half, model in (("encoder", "masked"), ("decoder", "causal")):
            self.add(
                ["combine", f"combined/{half}", f"--{half}", f"runs/{model}"],
                Comparison(f"`combine` of a trained {half} and a new half", f"combined/{half}", ADDED_UP),
            )

    def add_finetuning(self) -> None:
        """Add training on labels, from a model of `add_language_models`."""
        for task in ("classification", "tagging", "multi_label", "regression"):
            rows = files(self.corpora / task, splits=("train", "validation"))
            options = {"model": "runs/masked", "task": task, "eval_strategy": "steps", "max_length": 64}
            options |= {"learning_rate": 1e-3}
            if task == "tagging":
                options |= {"text_field": "tokens", "label_field": "tags"}
            self.train(task, "finetune", options | rows, resume=task in ("classification", "tagging"))

    def add_distillation(self) -> None:
        """Add students of a model of `add_translation`."""
        student = "students/layers"
        self.add(
            ["student", student, "--teacher", "runs/dates", "--encoder_layers", 2, "--decoder_layers", 1],
            Comparison("`student`", student),
        )
        options = PAIRS | files(Path("dates"), splits=("train", "validation")) | {"baseline": False}
        options = {name: value for name, value in options.items() if name != "vocab_size"}
        options |= {"max_steps": self.updates, "retention_metric": "exact_match"}
        small = {**SHAPE, "d_model": 32, "decoder_layers": 1}
        live = {"teacher": "runs/dates", "targets": "references", "cosine_weight": 1, "relation_weight": 1}
        live |= {"relation_heads": 4, "temperature": 2}
        self.train("distillation", "distill", options | small | live)
        kept = {
            "teacher": ["runs/dates", "runs/distillation"],
            "targets": "both",
            "teacher_num_beams": 2,
            "teacher_top_k": 8,
            "student": student,
        }
        short = files(Path("few-dates"), splits=("train", "validation"))
        self.train("distillation-on-disk", "distill", options | short | kept)

    def add_conversion(self) -> None:
        """Add conversions of library models in both directions."""
        for name in LIBRARY_MODELS:
            self.add(
                ["convert", self.corpora / "library" / name, f"ours/{name}"],
                Comparison(f"`convert` from {name}", f"ours/{name}"),
            )
            self.add(
                ["convert", f"ours/{name}", f"theirs/{name}", "--to", name],
                Comparison(f"`convert` to {name}", f"theirs/{name}"),
            )


def as_flags(options: dict[str, Any]) -> list[str]:
    """`{"d_model": 16}` -> `["--d_model", "16"]`."""
    flags: list[str] = []
    for name, value in options.items():
        flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return flags


def files(folder: Path, splits: tuple[str, ...] = ("train", "validation", "test")) -> dict[str, Path]:
    """Options that name the files of a corpus."""
    return {f"{split}_file": folder / f"{split}.jsonl" for split in splits}


# ----------------------------------------------------------------------------- texts and models to begin with

WORDS = ("the", "a", "old", "new", "man", "woman", "dog", "child", "house", "river", "sees", "finds", "loves")
WORDS += ("paints", "red", "blue", "quiet", "and", "of", "with")


def write_corpora(folder: Path, rows: int, data: Path | None) -> None:
    """Write texts, labelled texts, a task for prompts, library models and the parallel corpus.

    Args:
        folder: the folder to write to.
        rows: number of rows of each corpus; also of `data`, for training and for translating.
        data: the folder of a parallel corpus.
    """
    generator = torch.Generator().manual_seed(0)

    def sentence() -> list[str]:
        length = int(torch.randint(3, 15, (), generator=generator))
        return [WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator).tolist()]

    sentences = [sentence() for _ in range(rows)]
    labelled: dict[str, Callable[[list[str]], dict[str, Any]]] = {
        "texts": lambda words: {"text": ". ".join([" ".join(words)] * 2)},
        "classification": lambda words: {"text": " ".join(words), "label": str("man" in words)},
        "tagging": lambda words: {"tokens": words, "tags": [_tag(word) for word in words]},
        "multi_label": lambda words: {"text": " ".join(words), "label": sorted({*map(_tag, words)} - {"O"})},
        "regression": lambda words: {"text": " ".join(words), "label": float(words.count("the"))},
    }
    for name, row in labelled.items():
        write_rows(folder / name, {"train": map(row, sentences), "validation": map(row, sentences[:50])})
    write_lines(folder / "texts.txt", (" ".join(words) for words in sentences[: rows // 4]))
    examples = [{"text": " ".join(words), "answer": words[-1]} for words in sentences[:12]]
    task = {"prompt": "{text}:", "answer": " {answer}", "choices": [f" {word}" for word in WORDS]}
    task |= {"examples": examples[:4], "test": examples[4:]}
    (folder / "task.yaml").write_text(json.dumps(task))
    if data is not None:
        splits = {split: read_rows(data / f"{split}.jsonl") for split in ("train", "validation", "test")}
        kept = {"train": splits["train"][: 10 * rows], "validation": splits["validation"][:50]}
        write_rows(folder / "pairs", kept)
        write_lines(folder / "pairs.txt", (row["en"] for row in splits["test"][:rows]))
    save_library_models(folder / "library")


def _tag(word: str) -> str:
    return {"man": "B-PER", "woman": "B-PER", "house": "B-LOC", "river": "B-LOC"}.get(word, "O")


def write_rows(folder: Path, splits: dict[str, Iterable[dict[str, Any]]]) -> None:
    """Write a corpus as JSON Lines, one file per split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        write_lines(folder / f"{split}.jsonl", (json.dumps(row, ensure_ascii=False) for row in rows))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON Lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


_BERT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
_BERT |= {"hidden_dropout_prob": 0.2}
_GPT = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}
_PAIR = {name: value for name, value in SHAPE.items() if name != "d_model"} | {"d_model": 32}
LIBRARY_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForPreTraining", "BertConfig", {**_BERT, "vocab_size": 67}),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "vocab_size": 67},
    ),
    "big_bird": ("BigBirdForMaskedLM", "BigBirdConfig", {**_BERT, "attention_type": "original_full"}),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {**_GPT, "vocab_size": 67}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**_GPT, "vocab_size": 67}),
    "marian": (
        "MarianMTModel",
        "MarianConfig",
        {**_PAIR, "vocab_size": 67, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "fsmt": (
        "FSMTForConditionalGeneration",
        "FSMTConfig",
        {**_PAIR, "src_vocab_size": 67, "tgt_vocab_size": 71},
    ),
}


def save_library_models(folder: Path) -> None:
    """Save a model with random weights of each type that `vaswani convert` reads."""
    import transformers

    for name, (model, config, fields) in LIBRARY_MODELS.items():
        torch.manual_seed(0)
        tokens = {"vocab_size": 67, "bos_token_id": 0, "eos_token_id": 2}
        settings = fields if name == "fsmt" else tokens | fields
        getattr(transformers, model)(getattr(transformers, config)(**settings)).save_pretrained(folder / name)


# ---------------------------------------------------------------------------------------------- the two sides


class Side:
    """A process that has imported one checkout and runs commands in its own folder."""

    def __init__(self, name: str, source: Path, folder: Path):
        self.name, self.folder, self.calls = name, folder, 0
        copy = folder / "src"  # the original may change during the run
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        environment |= {"TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(copy)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True
        )

    def run(self, works: Iterable[Work]) -> None:
        """Run the commands one after the other, and report those that fail."""
        for work in works:
            status, log = self._call(work.call)
            if status:
                said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
                print(f"{self.name}: `{' '.join(work.call)}` failed:", *said, sep="\n  ", file=sys.stderr)

    def _call(self, call: list[str]) -> tuple[int, Path]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.calls += 1
        log = self.folder / f"{self.calls:02}-{call[0]}.log"
        self.process.stdin.write(json.dumps([call, str(log)]) + "\n")
        self.process.stdin.flush()
        if not (answer := self.process.stdout.readline()):
            raise SystemExit(f"{self.name}: the process ended early")
        return int(answer), log


def serve(source: str) -> None:
    """Import the checkout; then read calls from standard input, and run each in a forked process."""
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # pictures take longer than such trainings
    with suppress(ImportError):
        from pydantic import TypeAdapter  # noqa: F401  # typer imports it when it parses a command's options
    import vaswani
    import vaswani.cli

    assert Path(vaswani.__file__).is_relative_to(source), f"{vaswani.__file__} is not in {source}"
    for name in vaswani.__all__:
        getattr(vaswani, name)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the copies' collections touch none of these objects
    for line in sys.stdin:
        call, log = json.loads(line)
        copy = os.fork()
        if not copy:
            run_call(call, log)
        _, status = os.waitpid(copy, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run_call(call: list[str], log: str) -> NoReturn:
    """Run a command of `vaswani`, or a function of this file, in the forked process."""
    for descriptor, path in enumerate((os.devnull, log, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    if call[0] in ON_A_SIDE:
        ON_A_SIDE[call[0]](*call[1:])
        sys.stdout.flush()
        os._exit(0)
    from vaswani.cli import main

    sys.argv = ["vaswani", *call]
    main()
    raise SystemExit


def imported(name: str, *modules: str) -> Any:
    """Import a name from the first of these modules that has it; checkouts differ in this."""
    for module in modules:
        try:
            return getattr(import_module(f"vaswani.{module}"), name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"{name} is in none of {', '.join(modules)}")


def write_dates(rows: str) -> None:
    """The built-in corpus, as files."""
    generate_dates = imported("generate_dates", "data.sources.dates", "data.dates")
    splits = generate_dates("de,en,fr,ru", train_rows=5 * int(rows), validation_rows=50, test_rows=int(rows))
    write_rows(Path("dates"), splits)
    write_rows(
        Path("few-dates"), {name: split.select(range(min(50, len(split)))) for name, split in splits.items()}
    )
    write_lines(Path("dates/test.txt"), splits["test"]["source"])


def outputs_of_models() -> None:
    """Logits and losses of the models that were trained, for padded batches and with each kernel."""
    from transformers import AutoConfig, logging

    import vaswani

    logging.set_verbosity_error()
    outputs = {}
    for folder in sorted(Path("runs").iterdir()):
        config = AutoConfig.from_pretrained(folder)
        for kernel in ("eager", "sdpa"):
            model_class = getattr(vaswani, config.architectures[0])
            model = model_class.from_pretrained(folder, attn_implementation=kernel).eval()
            torch.manual_seed(0)
            ids = torch.randint(5, config.vocab_size, (3, 40))
            mask = torch.ones_like(ids)
            mask[1, 25:], mask[2, :9] = 0, 0
            sides = {"decoder_input_ids": ids[:, :11]} if config.is_encoder_decoder else {}
            with torch.inference_mode():
                found = model(input_ids=ids, attention_mask=mask, **sides, output_hidden_states=True)
            logits = getattr(found, "logits", getattr(found, "prediction_logits", None))
            outputs[f"{folder.name}.{kernel}"] = logits.contiguous()
    save_file(outputs, "outputs.safetensors")


ON_A_SIDE = {"write_dates": write_dates, "outputs_of_models": outputs_of_models}


# ------------------------------------------------------------------------------------------------ differences


def difference(before: Path, after: Path) -> tuple[int, float]:
    """Return the number of values compared in two files or folders, and the largest relative difference."""
    if not before.exists() or not after.exists():
        return 0, math.inf
    if before.is_dir():
        names = {path.relative_to(side) for side in (before, after) for path in side.rglob("*")}
        kept = [name for name in sorted(names) if _is_compared(before / name) and _is_compared(after / name)]
        found = [difference(before / name, after / name) for name in kept]
        return sum(count for count, _ in found), max((most for _, most in found), default=math.inf)
    if before.suffix == ".safetensors":
        return _tensor_difference(load_file(before), load_file(after))
    if before.suffix in (".json", ".jsonl"):
        values = [_read_json(path) for path in (before, after)]
        found = list(json_differences(*values))
        return len(found), max(found, default=math.inf)
    return 1, 0.0 if before.read_bytes() == after.read_bytes() else math.inf


def _is_compared(path: Path) -> bool:
    return not path.is_dir() and path.suffix not in UNCOMPARED_FILES and path.name not in UNCOMPARED_NAMES


def _read_json(path: Path) -> Any:
    if path.name == "tokenizer.json":
        return path.read_text(encoding="utf-8")
    values = read_rows(path) if path.suffix == ".jsonl" else json.loads(path.read_text(encoding="utf-8"))
    return values["log_history"] if path.name == "trainer_state.json" else values


def json_differences(before: Any, after: Any) -> Iterator[float]:
    """Yield the relative difference of each two values: 0 if equal, infinity if they are not numbers."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted((before.keys() | after.keys()) - {*UNCOMPARED_KEYS}):
            if not name.endswith(("_runtime", "_per_second")):
                yield from json_differences(before.get(name, "missing"), after.get(name, "missing"))
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield math.inf
        for pair in zip(before, after, strict=False):
            yield from json_differences(*pair)
    elif _is_number(before) and _is_number(after):
        yield relative(before, after)
    else:
        yield 0.0 if before == after else math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def relative(before: float, after: float) -> float:
    """|before - after| / |before|; 0 for two equal values, NaN among them."""
    if before == after or (math.isnan(before) and math.isnan(after)):
        return 0.0
    found = abs(before - after) / max(abs(before), abs(after))
    return math.inf if math.isnan(found) else found


def _tensor_difference(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> tuple[int, float]:
    """Relative to the largest value of each tensor."""
    if before.keys() != after.keys():
        return 0, math.inf
    worst = 0.0
    for name, first in before.items():
        second = after[name]
        if first.shape != second.shape or first.dtype != second.dtype:
            return 0, math.inf
        if not torch.equal(first, second):
            change = (first.double() - second.double()).abs().max().item()
            worst = max(worst, change / first.double().abs().max().clamp(min=1e-30).item())
    return sum(tensor.numel() for tensor in before.values()), math.inf if math.isnan(worst) else worst


# ---------------------------------------------------------------------------------------------------- the run


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the `src` folder of the first checkout")
    parser.add_argument("--after", type=Path, help="the `src` folder of the second")
    parser.add_argument("--data", type=Path, help="the folder of a parallel corpus: en and de, JSON Lines")
    parser.add_argument("--output", type=Path, help="keep what both sides write in this empty folder")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="finetuning needs the models of language_models, and distillation those of translation",
    )
    parser.add_argument("--quick", action="store_true", help="20 updates and 40 rows")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on a line")
    parser.add_argument("--serve", metavar="SRC", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is None and (args.before is None or args.after is None):
        parser.error("give --before SRC and --after SRC")
    return args


def compare(args: argparse.Namespace, folder: Path) -> list[Row]:
    """Run everything on both sides, which work at the same time."""
    corpora = folder / "corpora"
    before, after = (Side(name, getattr(args, name).resolve(), folder / name) for name in ("before", "after"))
    rows, updates = (40, 20) if args.quick else (1000, 200)
    write_corpora(corpora, rows, args.data)
    works = Plan(corpora, rows, updates, args.data).parts(args.parts)
    with ThreadPoolExecutor(2) as pool:
        first = [work for work in works if not work.only_after]
        list(pool.map(lambda side: side.run(first), (before, after)))
    after.run(work for work in works if work.only_after)
    found = []
    for compared in (compared for work in works for compared in work.compared):
        paths = before.folder / compared.path, after.folder / (compared.after or compared.path)
        found.append(Row(compared, *difference(*paths)))
    return found


def main() -> None:
    """Print the table; exit with 1 where something differs."""
    args = parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    from side_by_side import print_table

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = compare(args, folder.resolve())
    columns = ("compared", "verdict", "values", "largest difference", "allowed")
    print_table(columns, [row.cells() for row in rows])
    different = [row.comparison.name for row in rows if not row.is_equal]
    print(f"{len(rows)} comparisons in {time.perf_counter() - start:.0f} s; {len(different)} differ")
    if args.json:
        print(json.dumps({"compared": len(rows), "different": different}))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
