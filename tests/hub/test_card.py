"""Model cards state the known facts, each in its section, and nothing else."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BartConfig,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    PreTrainedModel,
)

from toy_translation import save_toy_checkpoint
from vaswani import VaswaniConfig, VaswaniEncoderModel, VaswaniForMaskedLM
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.hub.card import model_card, name_of_data, write_card
from vaswani.hub.plain_card import MARK, plain_model_card, usage
from vaswani.hub.run_metadata import RunMetadata, count_parameters, meta_model, read_run_metadata

EXAMPLE = {"source": "ein Hund", "translation": "a dog", "reference": "a dog"}
SCORE = {"name": "BLEU", "value": 36.1371, "low": 34.9, "high": 37.4, "signature": "nrefs:1|case:mixed"}
FACTS = RunMetadata(
    config=VaswaniConfig(d_model=64, encoder_layers=3, vocab_size=1000),
    num_parameters=1_234_567,
    settings={
        "dataset": "/home/ada/data/multi30k",
        "source_field": "de",
        "target_field": "en",
        "language": ["de", "zh_Hant"],
        "license": "mit",
        "learning_rate": 0.002,
        "max_steps": 3200,
        "teacher": [],
        "max_source_length": 256,
        "max_target_length": 128,
    },
    corpus={
        "rows": {"train": "kept 29,000 of 29,000 rows", "test": "kept 1,000 of 1,000 rows"},
        "train": {"name": "x", "files": [{"path": "/home/ada/data/multi30k/train.jsonl", "sha256": "abc"}]},
    },
    evaluation={
        "split": "test",
        "rows": 1000,
        "search": {"num_beams": 4},
        "metrics": {"bleu": SCORE},
        "intervals": "from resamples",
        "examples": [EXAMPLE, {**EXAMPLE, "reference": "a hound"}],
        "versions": {"torch": "2.13.0"},
    },
)


def text_of(facts: RunMetadata = FACTS, **settings: Any) -> str:
    return str(model_card(replace(facts, settings={**facts.settings, **settings}), "ada/model"))


def metadata_of(facts: RunMetadata = FACTS, **settings: Any) -> dict[str, Any]:
    return yaml.safe_load(text_of(facts, **settings).split("---\n")[1])


def section(card: str, title: str) -> str:
    return card.partition(f"## {title}\n\n")[2].partition("\n## ")[0]


def test_the_metadata_are_what_the_hub_reads() -> None:
    assert metadata_of() == {
        "language": ["de", "zh"],
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["vaswani", "encoder-decoder"],
        "metrics": ["bleu"],
        "model-index": [
            {
                "name": "model",
                "results": [
                    {
                        "task": {"type": "translation", "name": "Translation"},
                        "dataset": {"type": "multi30k", "name": "multi30k", "split": "test"},
                        "metrics": [
                            {
                                "type": "bleu",
                                "name": "BLEU",
                                "value": 36.14,
                                "args": {"signature": "nrefs:1|case:mixed"},
                            }
                        ],
                    }
                ],
            }
        ],
    }


def test_lower_cased_bleu_has_the_metric_type_bleu() -> None:
    scores = {"bleu": SCORE, "bleu_lowercased": {**SCORE, "name": "BLEU, lower-cased", "value": 37.25}}
    metadata = metadata_of(replace(FACTS, evaluation={**FACTS.evaluation, "metrics": scores}))
    assert metadata["metrics"] == ["bleu"]
    results = metadata["model-index"][0]["results"][0]["metrics"]
    found = [(each["type"], each["name"], each["value"]) for each in results]
    assert found == [("bleu", "BLEU", 36.14), ("bleu", "BLEU, lower-cased", 37.25)]


def test_the_card_of_a_summarizer_shortens_its_example() -> None:
    article = "word " * 4000
    scores = {f"rouge{kind}": {**SCORE, "name": f"ROUGE-{kind}"} for kind in (1, 2)}
    examples = [{**EXAMPLE, "source": article}]
    facts = replace(FACTS, evaluation={**FACTS.evaluation, "metrics": scores, "examples": examples})
    metadata = metadata_of(facts, task="summarization")
    assert (metadata["pipeline_tag"], metadata["metrics"]) == ("summarization", ["rouge"])
    results = metadata["model-index"][0]["results"][0]
    assert results["task"] == {"type": "summarization", "name": "Summarization"}
    assert [(each["type"], each["name"]) for each in results["metrics"]] == [
        ("rouge", "ROUGE-1"),
        ("rouge", "ROUGE-2"),
    ]
    card = text_of(facts, task="summarization")
    assert "| ROUGE-2 | 36.14 |" in section(card, "Results")
    assert "Scores compare with one reference per row" in section(card, "Limits")
    assert 'tokenizer(["word word' in section(card, "Use")
    assert len(card) < len(article)


def test_scores_name_the_file_of_their_split() -> None:
    files = {"train_file": ["train.tsv"], "validation_file": ["dir/valid.tsv"], "test_file": ["test.tsv"]}
    settings = {**FACTS.settings, "data_name": None, "dataset": None, **files}
    for split, name in (("test", "test.tsv"), ("validation", "valid.tsv")):
        facts = replace(FACTS, settings=settings, evaluation={**FACTS.evaluation, "split": split})
        facts = replace(facts, corpus={key: value for key, value in facts.corpus.items() if key != "dataset"})
        assert f"of the {split} split of {name}, decoded" in section(text_of(facts), "Results")
        assert metadata_of(facts)["model-index"][0]["results"][0]["dataset"]["name"] == name


def test_the_data_name_is_not_used_for_scores_of_another_file() -> None:
    facts = replace(FACTS, evaluation={**FACTS.evaluation, "split": "test"})
    assert "of the test split of pairs, decoded" in section(text_of(facts, data_name="pairs"), "Results")
    with_file = text_of(facts, data_name="pairs", dataset=None, test_file=["dir/newstest.tsv"])
    assert "of the test split of newstest.tsv, decoded" in section(with_file, "Results")
    assert "It was trained on pairs" in with_file


def test_an_example_begins_with_the_prefix_of_the_sources() -> None:
    assert 'tokenizer(["turn: ' in section(text_of(replace(FACTS, source_prefix="turn: ")), "Use")
    assert 'tokenizer(["turn: ' not in section(text_of(FACTS), "Use")


def test_an_example_of_a_model_with_tags_begins_with_one() -> None:
    facts = replace(FACTS, source_tags=("<2de>", "<2fr>"))
    use = section(text_of(facts), "Use")
    assert 'tokenizer(["<2de> ' in use
    assert "begins with the tag of its target's language: `<2de>`, `<2fr>`." in use
    examples = [{**each, "source": f"<2fr> {each['source']}"} for each in facts.evaluation["examples"]]
    tagged = replace(facts, evaluation={**facts.evaluation, "examples": examples})
    assert 'tokenizer(["<2fr> ' in section(text_of(tagged), "Use")


def test_files_of_lines_have_no_fields() -> None:
    files = {"dataset": None, "train_file": ["x/train.fi", "x/train.es"]}
    card = text_of(replace(FACTS, settings={**FACTS.settings, **files}))
    assert "to predict a line of `train.es` from that of `train.fi`" in card


def test_directions_name_the_columns_and_their_languages() -> None:
    facts = replace(FACTS, settings={"dataset": "corpus", "directions": ["en:zh_CN", "t.de-en"]})
    assert "to predict one column of a row from another (`en:zh_CN`, `t.de-en`)" in text_of(facts)
    assert "Languages: de, en, zh" in section(text_of(facts), "Data")
    assert metadata_of(facts, language=["fr"])["language"] == ["fr"]
    assert "Languages: not stated" in section(text_of(facts, directions=["english-de"]), "Data")
    scored = {**facts.evaluation, "directions": {"bleu_t.de-en": 12.345, "bleu_en:zh_CN": 6}}
    told = section(text_of(replace(facts, evaluation=scored)), "Results")
    assert "By direction: bleu_t.de-en 12.35, bleu_en:zh_CN 6.00." in told
    scored["signatures_of_directions"] = {"bleu_en:zh_CN": "tok:zh"}
    told = section(text_of(replace(facts, evaluation=scored)), "Results")
    assert "By direction: bleu_t.de-en 12.35, bleu_en:zh_CN 6.00 (tok:zh)." in told


def test_each_section_holds_the_known_facts() -> None:
    card = text_of()
    assert "with 3 encoder layers and 6 decoder layers of width 64, 1,234,567 parameters." in card
    assert "trained on multi30k to predict the `en` of a row from its `de`" in card
    results = section(card, "Results")
    assert "| BLEU | 36.14 | 34.90 to 37.40 | `nrefs:1\\|case:mixed` |" in results
    assert "On the 1,000 rows of the test split of multi30k, decoded with num_beams 4" in results
    assert "| ein Hund | a dog | a hound |" in results
    assert "train: kept 29,000 of 29,000 rows (`train.jsonl` SHA-256 `abc`)" in section(card, "Data")
    assert "| `learning_rate` | 0.002 |" in section(card, "Training")
    assert "Versions: torch 2.13.0." in section(card, "Training")
    assert "| Width (d_model) | 64 |" in section(card, "Architecture")
    assert "| Size | 4.9 MB of weights in float32 |" in section(card, "Architecture")
    assert "sources of up to 256 tokens and targets of up to 128" in section(card, "Limits")
    assert 'tokenizer(["ein Hund"]' in section(card, "Use")
    assert "/home/ada" not in card
    assert card.rstrip().endswith(MARK)


def test_a_mean_that_was_not_evaluated_says_so() -> None:
    mean = RunMetadata(FACTS.config, 5, averaged=("checkpoint-6", "checkpoint-8"))
    text = section(text_of(mean), "Results")
    assert text.startswith(
        "No scores are known: the mean of the checkpoints has not been evaluated (`vaswani "
    )
    assert "--save_scores`)" in text
    assert "not finished" in section(text_of(replace(mean, unfinished="update 2 of 9")), "Results")


def test_scores_of_other_data_have_its_name() -> None:
    other = replace(FACTS, evaluation={**FACTS.evaluation, "data": "news.jsonl", "dataset_config": None})
    card = text_of(other)
    assert " split of news.jsonl" in section(card, "Results")
    assert "from the same source as the training data" not in section(card, "Limits")
    assert "from the same source as the training data" in section(text_of(FACTS), "Limits")
    off = {"coverage_penalty": 0.0, "replace_unknown": False, "max_source_length": None}
    search = {"num_beams": 4, "length_penalty": 0.0, **off}
    told = section(text_of(replace(other, evaluation={**other.evaluation, "search": search})), "Results")
    assert "decoded with num_beams 4, length_penalty 0.0:" in told
    (entry,) = metadata_of(other)["model-index"]
    assert {result["dataset"]["name"] for result in entry["results"]} == {"news.jsonl"}


def test_missing_facts_are_reported_as_unknown() -> None:
    card = text_of(RunMetadata(FACTS.config, 5))
    assert "No scores are known: the folder has no record of a training." in card
    assert "the run had no" in text_of(RunMetadata(FACTS.config, 5, {"max_steps": 3}))
    assert set(yaml.safe_load(card.split("---\n")[1])) == {"library_name", "tags", "model_name"}
    assert section(card, "Results").startswith("No scores are known")
    assert "Licence: not stated" in section(card, "Data")
    assert "Languages: not stated" in section(card, "Data")
    assert "No licence is stated" in section(card, "Limits")
    assert "## Training" not in card
    assert "was trained on" not in card.partition("## Use")[0]


@pytest.mark.parametrize(
    ("settings", "title", "words"),
    [
        ({"data_name": "Multi30k"}, "Data", "Name: Multi30k"),
        ({"data_url": "https://example.org"}, "Data", "Source: https://example.org"),
        ({"data_license": "cc-by-4.0"}, "Data", "Licence: cc-by-4.0"),
        ({"dataset_config": "2016"}, "Data", "Name: multi30k (2016)"),
        ({"teacher": ["/home/ada/teacher"]}, "Training", "| `teacher` | teacher |"),
        ({"unlabelled_file": ["/home/ada/more.txt"]}, "Training", "| `unlabelled_file` | more.txt |"),
        ({"targets": "both", "prompt_tokens": 7}, "Training", "| `prompt_tokens` | 7 |"),
        ({"student_layers": "0,2"}, "Training", "| `student_layers` | 0,2 |"),
        ({"teacher_top_k": 8}, "Training", "| `teacher_top_k` | 8 |"),
        ({"soft_target_tokens": "masked"}, "Training", "| `soft_target_tokens` | masked |"),
        ({"license": None}, "Limits", "No licence is stated"),
    ],
    ids=str,
)
def test_stated_settings_appear_in_their_section(settings: dict[str, Any], title: str, words: str) -> None:
    assert words in section(text_of(**settings), title)
    assert words not in section(text_of(), title)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"norm_order": "pre"}, "before each sublayer (pre-norm)"),
        ({"position_embedding": "learned", "max_position_embeddings": 99}, "It has positions for 99 tokens"),
        ({"encoder_attention": "sparse", "sparse_seed": 7}, "(seed 7)"),
        ({"encoder_attention": ["full", "sparse", "sparse"]}, "sparse in layers 2, 3, else full"),
        (
            {"encoder_attention": "sparse", "sparse_global_blocks": 0, "sparse_global_tokens": 5},
            "5 global tokens",
        ),
        ({"decoder_vocab_size": 900}, "1,000 source and 900 target tokens"),
        ({"tie_word_embeddings": False}, "weights of its own"),
        ({"sinusoidal_layout": "concatenated"}, "sinusoidal (concatenated)"),
        ({"activation_function": "gelu"}, "| Activation | gelu |"),
        ({"dtype": "bfloat16"}, "MB of weights in bfloat16"),
    ],
    ids=str,
)
def test_the_architecture_is_the_configurations(fields: dict[str, Any], words: str) -> None:
    config = VaswaniConfig(d_model=64, encoder_layers=3, vocab_size=1000, **fields)
    assert words in text_of(replace(FACTS, config=config))
    assert words not in text_of()
    if "positions for" not in words:
        assert words in str(plain_model_card(config, 5, "ada/model"))


def test_sparse_attention_and_distillation_add_tags() -> None:
    sparse = VaswaniConfig(decoder_attention="sparse")
    facts = replace(FACTS, config=sparse, distillation="## Distillation\n\nas good\n")
    assert metadata_of(facts)["tags"][2:] == ["sparse-attention", "knowledge-distillation"]
    assert section(text_of(facts), "Distillation").startswith("as good")
    assert "quality_speed.png" not in text_of(facts)
    assert "(quality_speed.png)" in text_of(replace(facts, has_plot=True))


def test_a_comparison_of_other_models_is_no_distillation() -> None:
    compared = replace(FACTS, distillation="## Comparison\n\nas good\n")
    assert "knowledge-distillation" not in metadata_of(compared)["tags"]
    assert section(text_of(compared), "Comparison").startswith("as good")
    student = replace(compared, settings={**FACTS.settings, "teacher": ["large"]})
    assert "knowledge-distillation" in metadata_of(student)["tags"]


def test_only_a_data_set_of_the_hub_is_linked() -> None:
    of_hub = replace(FACTS, corpus={"train": {"dataset": "ada/pairs"}})
    assert metadata_of(of_hub, dataset="ada/pairs")["datasets"] == ["ada/pairs"]
    assert "https://huggingface.co/datasets/ada/pairs" in section(
        text_of(of_hub, dataset="ada/pairs"), "Data"
    )
    assert "datasets" not in metadata_of()
    assert (
        name_of_data(replace(FACTS, settings={"train_file": ["/home/a.de", "/home/a.en"]})) == "a.de and a.en"
    )


def test_sources_without_targets_name_the_data_if_there_are_no_others() -> None:
    more = {"unlabelled_file": ["/home/ada/more.txt"], "validation_file": ["/home/ada/v.jsonl"]}
    facts = RunMetadata(FACTS.config, 5, {"teacher": ["large"], **more}, corpus={"rows": {"train": "kept 9"}})
    assert "It was distilled on more.txt to predict" in text_of(facts)
    assert name_of_data(facts, "validation") == "v.jsonl"


def test_options_of_the_teachers_texts_are_listed_only_if_they_had_an_effect() -> None:
    assert "prompt_tokens" not in text_of(prompt_tokens=7, targets="references")


def test_the_dates_data_set_has_a_licence_and_languages() -> None:
    corpus = {
        "dataset": "dates",
        "source": "https://cldr",
        "license": "Unicode-3.0",
        "locales": ["de", "zh_Hans"],
    }
    facts = replace(FACTS, corpus=corpus, settings={"dataset": "dates"})
    assert "Licence: Unicode-3.0" in section(text_of(facts), "Data")
    assert metadata_of(facts)["language"] == ["de", "zh"]


def test_the_card_of_a_library_model_has_one_snippet() -> None:
    facts = replace(FACTS, config=MarianConfig(architectures=["MarianMTModel"]))
    card = text_of(facts)
    assert card.count("```python") == 1
    assert "trust_remote_code" not in card
    assert "An encoder-decoder of type marian with 1,234,567 parameters" in card


@pytest.mark.parametrize(
    ("config", "architecture", "auto_class"),
    [
        (BertConfig, "BertForSequenceClassification", "AutoModelForSequenceClassification"),
        (BertConfig, "BertForTokenClassification", "AutoModelForTokenClassification"),
        (BertConfig, "BertForQuestionAnswering", "AutoModelForQuestionAnswering"),
        (BertConfig, "BertForPreTraining", "AutoModelForPreTraining"),
        (BertConfig, "BertModel", "AutoModel"),
        (BertConfig, None, "AutoModel"),
        (GPT2Config, "GPT2LMHeadModel", "AutoModelForCausalLM"),
        (BartConfig, "BartModel", "AutoModelForSeq2SeqLM"),
        (VaswaniConfig, "VaswaniModel", "AutoModel"),
    ],
)
def test_the_snippet_loads_the_class_that_was_saved(config: Any, architecture: str, auto_class: str) -> None:
    named = config(architectures=architecture and [architecture])
    assert f"import {auto_class}, AutoTokenizer" in usage(named, "name")


@pytest.mark.slow
@given(text=st.text())
def test_any_example_keeps_its_table_and_its_snippet(text: str) -> None:
    evaluation = {**FACTS.evaluation, "examples": [{**EXAMPLE, "source": text}]}
    card = text_of(replace(FACTS, evaluation=evaluation))
    rows = section(card, "Results").split("| Source |")[1].strip().split("\n")
    assert len(rows) == 3  # the rest of the heading, the rule, one row
    assert re.sub(r"\\.", "", rows[2]).count("|") == 4
    assert "<" not in rows[2]
    assert card.count("\n## ") == 6


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("<unk> <script>x</script> &amp;", "&lt;unk&gt; &lt;script&gt;x&lt;/script&gt; &amp;amp;"),
        ("![t](http://a.b/c.png)", "!\\[t\\](http://a.b/c.png)"),
        ("a\\|b _x_ *y* `z`", "a\\\\\\|b \\_x\\_ \\*y\\* \\`z\\`"),
        ("red \x1b[31m", "red \\[31m"),
    ],
)
def test_markup_in_examples_is_escaped(text: str, cell: str) -> None:
    """Neither as Markdown nor as HTML, whatever the rows of a corpus hold."""
    evaluation = {**FACTS.evaluation, "examples": [{**EXAMPLE, "source": text}]}
    rows = section(text_of(replace(FACTS, evaluation=evaluation)), "Results").split("| Source |")[1]
    assert rows.strip().split("\n")[2].startswith(f"| {cell} |")


@pytest.mark.parametrize("text", ['a "quoted" text', "back\\slash", "line\nbreak", "日本"])
def test_any_example_is_a_string_of_python(text: str) -> None:
    card = text_of(replace(FACTS, evaluation={**FACTS.evaluation, "examples": [{**EXAMPLE, "source": text}]}))
    line = next(line for line in card.splitlines() if line.startswith("inputs = "))
    given_texts = []
    exec(line, {"tokenizer": lambda texts, **options: given_texts.append(texts)})
    assert given_texts == [[text]]


# Reading and writing.


@pytest.mark.slow
def test_facts_come_from_the_folder(tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy", separate=True)
    (folder / "training_config.yaml").write_text("dataset: dates\nlanguage: [de]\n")
    (folder / "evaluation.json").write_text(json.dumps(FACTS.evaluation))
    (folder / "report.md").write_text("## Distillation\n")
    facts = read_run_metadata(folder)
    assert facts.settings == {"dataset": "dates", "language": ["de"]}
    assert facts.evaluation == FACTS.evaluation
    assert facts.distillation == "## Distillation\n"
    assert facts.target_tokenizer == "target_tokenizer"
    assert 'subfolder="target_tokenizer"' in str(model_card(facts, "toy"))
    assert facts.num_parameters == count_parameters(facts.config) > 0
    assert read_run_metadata(folder, VaswaniConfig()).num_parameters == count_parameters(VaswaniConfig())


@pytest.mark.parametrize(
    "model_class", [MarianModel, MarianMTModel, GPT2LMHeadModel, VaswaniEncoderModel, VaswaniForMaskedLM]
)
def test_parameters_are_counted_of_the_class_that_was_saved(model_class: type[PreTrainedModel]) -> None:
    config = model_class.config_class(architectures=[model_class.__name__], pad_token_id=0)
    assert type(meta_model(config)) is model_class


@pytest.mark.parametrize("name", ["training_config.yaml", "corpus.json", "evaluation.json", "config.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    (folder / name).write_text("{[")
    with pytest.raises(UserError, match=name if name != "config.json" else "toy"):
        read_run_metadata(folder)


@pytest.mark.parametrize("name", ["training_config.yaml", "corpus.json", "evaluation.json"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    (folder / name).write_text("[1, 2]")
    wanted = r"must hold `key: value` lines, not \[1, 2\]|holds a JSON value of type list; expected an object"
    with pytest.raises(UserError, match=rf"{name} ({wanted}).*correct it, or move it away"):
        read_run_metadata(folder)


def test_a_card_written_by_hand_is_kept(tmp_path: Path) -> None:
    write_card(tmp_path, FACTS, "ada/model")
    write_card(tmp_path, FACTS, "ada/renamed")
    assert "# renamed" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("mine")
    write_card(tmp_path, FACTS, "ada/model")
    assert (tmp_path / "README.md").read_text() == "mine"


def test_the_command_prints_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    stated = ["--language", "de", "--language", "en", "--license", "mit", "--data_name", "pairs"]
    assert run(["card", "--model", str(folder), "--repo", "ada/toy", *stated]) == 0
    card = capsys.readouterr().out
    assert "language:\n- de\n- en\n" in card
    assert "license: mit" in card
    assert "Name: pairs" in card
    assert 'from_pretrained("ada/toy"' in card
    assert run(["card", "--model", str(folder), "--repo", "a b"]) == 2
    assert "vaswani: repo='a b': " in capsys.readouterr().err
    assert run(["card", "--model", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (folder / "decoder_model.onnx").touch()
    assert run(["card", "--model", str(folder)]) == 2
    assert "holds a model in ONNX" in capsys.readouterr().err
