"""Every command that reads a model, with valid arguments, and the models and texts that these name."""

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import BertConfig, BertForMaskedLM

from toy_translation import save_toy_checkpoint, toy_rows, toy_tokenizer
from vaswani import (
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSequenceClassification,
)


def save_models(folder: Path) -> Path:
    """A translator, two halves of one, a model of another kind, a corpus and a task."""
    torch.manual_seed(0)
    save_toy_checkpoint(folder / "translator")
    for kind, model in {
        "classifier": VaswaniForSequenceClassification(
            VaswaniEncoderConfig(
                vocab_size=304, d_model=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=8
            )
        ),
        "encoder": VaswaniForMaskedLM(
            VaswaniEncoderConfig(
                vocab_size=304, d_model=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=8
            )
        ),
        "decoder": VaswaniForCausalLM(
            VaswaniDecoderConfig(
                vocab_size=304, d_model=8, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=8
            )
        ),
    }.items():
        model.save_pretrained(folder / kind)
        toy_tokenizer().save_pretrained(folder / kind)
    sides = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertForMaskedLM(BertConfig(vocab_size=20, **sides)).save_pretrained(folder / "bert")
    rows = toy_rows(4, seed=0)
    texts = [json.dumps({"source": source, "target": target}) for source, target in rows]
    (folder / "rows.jsonl").write_text("".join(f"{text}\n" for text in texts))
    (folder / "in.txt").write_text("".join(f"{source}\n" for source, _ in rows))
    task = {"prompt": "{source}:", "answer": " {target}", "choices": [" 1", " 2"], "examples": [], "test": []}
    task["test"] = [{"source": "one", "target": "1"}, {"source": "two", "target": "2"}]
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    return folder


def commands(models: Path, folder: Path) -> dict[str, tuple[list[str], list[Path]]]:
    """Of each command its arguments, and the files that it writes into the folder."""
    translator, search = ["--model", models / "translator"], ["--num_beams", "1", "--max_length", "5"]
    found: dict[str, tuple[list[Any], list[str]]] = {
        "translate": ([*translator, "--input", models / "in.txt", *search], ["out.txt"]),
        "summarize": ([*translator, "--input", models / "in.txt", *search], ["summaries.txt"]),
        "evaluate": ([*translator, "--data", models / "rows.jsonl", *search], ["evaluated.txt"]),
        "embed": (["--model", models / "encoder", "--input", models / "in.txt"], ["vectors.jsonl"]),
        "predict": (["--model", models / "classifier", "--input", models / "in.txt"], ["predicted.jsonl"]),
        "align": ([*translator, "--input", models / "rows.jsonl"], ["links.jsonl"]),
        "attention": ([*translator, "--source", "one two", "--target", "1 2"], ["attention.html"]),
        "score": ([*translator, "--input", models / "rows.jsonl"], ["scores.jsonl"]),
        "prompt": (["--model", models / "decoder", "--task", models / "task.yaml"], ["answers.jsonl"]),
        "generate": (["--model", models / "decoder", "--input", models / "in.txt"], ["continued.txt"]),
        "student": ([folder / "student", "--teacher", models / "translator"], ["student/model.safetensors"]),
        "convert": ([models / "bert", folder / "ours"], ["ours/model.safetensors"]),
        "export": ([models / "encoder", folder / "engine"], ["engine/model.bin"]),
        "combine": ([folder / "both", "--encoder", models / "encoder"], ["both/model.safetensors"]),
        "average": ([models / "translator", folder / "mean"], ["mean/model.safetensors"]),
        "card": (["--model", models / "translator"], []),
        "estimate": (["--model", models / "translator", "--device", "h100"], []),
        "plot": (["sparse-pattern", "--output", folder / "plot.svg", "--length", "512"], ["plot.svg"]),
    }
    for name in (
        "translate",
        "summarize",
        "evaluate",
        "predict",
        "embed",
        "generate",
        "prompt",
        "score",
        "align",
        "attention",
    ):
        found[name][0].extend(["--output", folder / found[name][1][0]])
    found["compare"] = (
        [models / "translator", folder / "student", "--data", models / "rows.jsonl", *search],
        ["student/report.md", "student/report.json"],
    )
    return {
        name: ([name, *map(str, arguments)], [folder / file for file in files])
        for name, (arguments, files) in found.items()
    }
