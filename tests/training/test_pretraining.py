"""Complete pre-trainings of a second: the results, reproducibility, resuming, and errors."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from refusals import refusal
from run_records import assert_same_weights, logged
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)

from tiny_runs import resolved, weights
from toy_texts import toy_documents, write_texts
from vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError
from vaswani.training.config.config_file import load_config
from vaswani.training.config.pretraining_arguments import CausalLMConfig, MaskedLMConfig, PretrainingConfig
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun, pretrain

TINY = {
    "d_model": 16,
    "vocab_size": 320,
    "max_length": 24,
    "learning_rate": 3e-3,
    "warmup_steps": 4,
    "max_steps": 6,
    "max_tokens_per_batch": 400,
    "logging_steps": 1,
    "save_steps": 3,
    "use_cpu": True,
    "disable_tqdm": True,
}
ENCODER = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
OBJECTIVES = {
    "masked": {**ENCODER, "objective": "masked"},
    "pairs": {**ENCODER, "objective": "masked", "next_sentence": True},
    "causal": {**DECODER, "objective": "causal"},
}


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> dict[str, str]:
    """Files of a corpus that a tiny model reads within a second."""
    return write_texts(tmp_path_factory.mktemp("texts"), train=60, validation=10, test=12)


@pytest.fixture
def tiny(texts, tmp_path) -> dict:
    return {**TINY, **texts, "output_dir": str(tmp_path / "run")}


def resolve(options: dict, **more):
    return resolved({**options, **more}, PretrainingConfig)


def run(options: dict, **more) -> dict[str, float]:
    return pretrain(resolve(options, **more))


# ------------------------------------------------------------------------------------------ what a run leaves


@pytest.mark.parametrize(
    ("kind", "auto_class", "scores"),
    [
        ("masked", AutoModelForMaskedLM, {"loss", "perplexity", "accuracy"}),
        ("pairs", AutoModelForPreTraining, {"loss", "perplexity", "accuracy", "next_sentence_accuracy"}),
        ("causal", AutoModelForCausalLM, {"loss", "perplexity", "accuracy", "bits_per_byte"}),
    ],
)
def test_a_run_leaves_a_model_that_plain_transformers_loads(tiny, kind, auto_class, scores, capsys):
    found = run(tiny, **OBJECTIVES[kind], eval_strategy="steps", eval_steps=3)
    assert {name.removeprefix("test_") for name in found} >= scores
    folder = Path(tiny["output_dir"])
    for directory in (folder, folder / "checkpoint-3"):
        model, loading = auto_class.from_pretrained(directory, output_loading_info=True)
        assert not loading["missing_keys"]
        assert not loading["unexpected_keys"]
        assert len(AutoTokenizer.from_pretrained(directory)) == model.config.vocab_size == 320
    assert logged(folder, "eval_loss")
    record = json.loads((folder / "evaluation.json").read_text())
    assert record["metrics"].keys() == scores
    assert record["split"] == "test"
    for name in scores:
        metric = record["metrics"][name]
        assert metric["low"] <= metric["value"] <= metric["high"]
        assert metric["value"] == found[f"test_{name}"]
    provenance = json.loads((folder / "corpus.json").read_text())
    assert provenance["train"]["text_field"] == "text"
    printed = capsys.readouterr().out
    assert "train: kept 60 of 60 rows: " in printed
    assert "test (" in printed
    assert "Perplexity " in printed
    card = (folder / "README.md").read_text()
    assert ("to continue texts" if kind == "causal" else "to fill in masked words") in card
    assert f"On the {record['rows']} sequences of the test split" in card


@pytest.mark.slow
def test_pretrained_models_fill_masks_and_continue_texts(tiny):
    run(tiny, **OBJECTIVES["pairs"])
    filled = pipeline("fill-mask", model=tiny["output_dir"])("The <mask> sleeps.")
    assert len(filled) == 5
    assert all(" sleeps." in answer["sequence"] for answer in filled)
    other = f"{tiny['output_dir']}-causal"
    run({**tiny, "output_dir": other}, **OBJECTIVES["causal"])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(other), AutoTokenizer.from_pretrained(other)
    model.generation_config.eos_token_id = None
    written = model.generate(**tokenizer("The dog", return_tensors="pt"), do_sample=False)
    assert written.shape[1] == TINY["max_length"]  # as long as sequences were
    assert (text := tokenizer.decode(written[0], skip_special_tokens=True)).startswith("The dog")
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert write("The dog", do_sample=False, max_new_tokens=None)[0]["generated_text"] == text


# -------------------------------------------------------------------------------------------------- resuming


def test_resuming_with_another_model_or_corpus_is_refused(tiny, tmp_path):
    options = {**tiny, **OBJECTIVES["masked"]}
    run(options)
    with pytest.raises(
        UserError, match=r"cannot change encoder_ffn_dim=64 \(it was trained with 32\); resume"
    ):
        run(options, encoder_ffn_dim=64, resume_from_checkpoint="true")
    shutil.copy(options["validation_file"], tmp_path / "other.jsonl")
    with pytest.raises(UserError, match=r"the data changed since .* was saved \(train\)"):
        run({**options, "train_file": tmp_path / "other.jsonl"}, resume_from_checkpoint="true")


# --------------------------------------------------------------------------------------------------- options


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory) -> dict[str, torch.Tensor]:
    """Weights of a run of each objective."""
    found = {}
    for kind in ("masked", "causal"):
        folder = tmp_path_factory.mktemp(kind)
        options = {**TINY, "train_file": texts["train_file"], "save_strategy": "no", "output_dir": folder}
        run(options, **OBJECTIVES[kind])
        found[kind] = weights(folder)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("masked", {"mask_probability": 0.4}),
        ("masked", {"whole_word_masking": True}),
        ("masked", {"next_sentence": True}),
        ("masked", {"mlm_transform": False}),
        ("masked", {"embedding_norm": False}),
        ("masked", {"layer_norm_eps": 1e-3}),
        ("masked", {"norm_bias": False}),
        ("masked", {"lm_head_bias": False}),
        ("masked", {"initializer_range": 0.1}),
        ("masked", {"encoder_attention": ["sparse"], "sparse_block_size": 2, "sparse_random_blocks": 1}),
        ("masked", {"tokenizer_kind": "byte"}),
        ("masked", {"tokenizer_rows": 5}),
        ("masked", {"max_length": 16}),
        ("masked", {"seed": 3}),
        ("masked", {"data_seed": 3}),
        ("masked", {"streaming": True}),
        ("masked", {"text_field": "number"}),
        ("causal", {"pack": False}),
        ("causal", {"tokenizer_kind": "byte"}),
        ("causal", {"position_embedding": "none"}),
        ("causal", {"norm_order": "post"}),
        ("causal", {"decoder_attention": ["sparse"], "pack": False, "sparse_block_size": 2}),
        ("causal", {"streaming": True}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_each_option_changes_the_weights(tiny, trained, kind, option, tmp_path):
    del tiny["test_file"], tiny["validation_file"]
    if option == {"text_field": "number"}:  # another column of text
        rows = [json.loads(line) for line in Path(tiny["train_file"]).read_text().splitlines()]
        tiny["train_file"] = tmp_path / "numbers.jsonl"
        lines = [json.dumps({"number": f"{row['number']} {row['number'] ** 2}."}) for row in rows]
        tiny["train_file"].write_text("\n".join(lines))
    run(tiny, **OBJECTIVES[kind], save_strategy="no", **option)
    moved = weights(tiny["output_dir"])
    assert moved.shape != trained[kind].shape or not torch.equal(moved, trained[kind])


def test_every_model_field_reaches_the_model(tiny):
    """Each with another value than by default."""
    both = {
        "d_model": 24,
        "dropout": 0.25,
        "attention_dropout": 0.2,
        "activation_dropout": 0.15,
        "word_dropout": 0.1,
    }
    both |= {"activation_function": "silu", "layer_norm_eps": 1e-3, "norm_bias": False}
    both |= {"position_embedding": "sinusoidal", "sinusoidal_layout": "concatenated"}
    both |= {"max_position_embeddings": 99, "attention_bias": False, "ffn_bias": False}
    both |= {"scale_embedding": True, "tie_word_embeddings": False, "initializer_range": 0.3}
    encoder = {"encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 20, "norm_order": "pre"}
    encoder |= {"embedding_norm": False, "lm_head_bias": False, "mlm_transform": False}
    decoder = {"decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 20, "norm_order": "post"}
    decoder |= {"embedding_norm": True, "lm_head_bias": True}
    for objective, kind, shape, fields in [
        ("masked", MaskedLMRun, VaswaniEncoderConfig, {**both, **encoder}),
        ("causal", CausalLMRun, VaswaniDecoderConfig, {**both, **decoder}),
    ]:
        config = resolve({**tiny, **fields, "objective": objective, "vocab_size": 300})
        model = kind(config).model_config(None)
        assert type(model) is shape
        assert {name: getattr(model, name) for name in fields} == fields
        assert model.vocab_size == 300


@pytest.mark.slow
def test_documents_of_a_text_file_can_be_separated_by_blank_lines(tiny, tmp_path, capsys):
    path = tmp_path / "train.txt"
    path.write_text("The dog sleeps.\nThe dog sings.\n\n" * 20)
    for documents, count in (("blank_line", "20 of 20"), ("line", "40 of 60")):
        options = {**tiny, "train_file": path, "output_dir": tmp_path / documents, "documents": documents}
        run(options, **OBJECTIVES["causal"], max_steps=1)
        assert f"train: kept {count} rows" in capsys.readouterr().out


def test_validation_sequences_can_be_limited(tiny, capsys):
    run(tiny, **OBJECTIVES["masked"], max_validation_rows=3, eval_strategy="steps", eval_steps=6)
    assert "validation: kept 10 of 10 rows: 3 sequences" in capsys.readouterr().out


@pytest.mark.slow
def test_token_types_exist_only_where_used(tiny):
    for kind, token_types in (("masked", 0), ("pairs", 2)):
        folder = f"{tiny['output_dir']}-{kind}"
        run({**tiny, "output_dir": folder}, **OBJECTIVES[kind], max_steps=1)
        assert VaswaniEncoderConfig.from_pretrained(folder).token_type_vocab_size == token_types
        names = AutoTokenizer.from_pretrained(folder)("a", "b").keys()
        assert ("token_type_ids" in names) == bool(token_types)


# ------------------------------------------------------------------------------------- going on with a model


@pytest.fixture(scope="module")
def models(texts, tmp_path_factory) -> dict[str, Path]:
    """A folder that a run of each objective left."""
    folders = {}
    for kind, options in OBJECTIVES.items():
        folders[kind] = tmp_path_factory.mktemp("models") / kind
        run({**TINY, **texts, "output_dir": folders[kind]}, **options, position_embedding="sinusoidal")
    return folders


def continued_options(tiny: dict, kind: str, model: Path, **more) -> dict:
    """The options of a run that goes on with a model."""
    of_objective = {
        name: OBJECTIVES[kind][name] for name in ("objective", "next_sentence") if name in OBJECTIVES[kind]
    }
    kept = {name: value for name, value in tiny.items() if name not in ("d_model", "vocab_size")}
    return {**kept, **of_objective, "model": str(model), **more}


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_model_is_trained_further_on_longer_sequences(tiny, models, kind, capsys):
    options = continued_options(tiny, kind, models[kind], max_length=60, learning_rate=1e-9, warmup_steps=0)
    run(options)
    assert "new weights" not in capsys.readouterr().out
    torch.testing.assert_close(weights(tiny["output_dir"]), weights(models[kind]), rtol=0, atol=1e-6)
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (models[kind], tiny["output_dir"]))
    assert after.get_vocab() == before.get_vocab()
    text = " ".join(["The dog sleeps."] * 30)
    assert after(text).input_ids == before(text).input_ids
    shutil.rmtree(tiny["output_dir"])
    run(options, learning_rate=3e-3)
    assert (weights(tiny["output_dir"]) - weights(models[kind])).abs().max() > 1e-3


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_continued_pretraining_is_reproducible_and_resumable(tiny, models, tmp_path, kind):
    run(continued_options(tiny, kind, models[kind], seed=11))
    first = Path(tiny["output_dir"])
    saved = first / "training_config.yaml"
    pretrain(load_config(saved, ["--output_dir", str(tmp_path / "again")], PretrainingConfig))
    assert_same_weights(tmp_path / "again", first)
    resumed = tmp_path / "resumed"
    shutil.copytree(first / "checkpoint-3", resumed / "checkpoint-3")
    flags = ["--output_dir", str(resumed), "--resume_from_checkpoint", "true"]
    pretrain(load_config(saved, flags, PretrainingConfig))
    assert_same_weights(resumed, first)


@pytest.mark.slow
def test_a_missing_head_is_initialized(tiny, models, capsys):
    run(continued_options(tiny, "pairs", models["pairs"]) | {"next_sentence": False}, max_steps=1)
    printed = capsys.readouterr().out
    assert "new weights" not in printed
    assert "left out: model.pooler.dense, next_sentence\n" in printed
    base = Path(tiny["output_dir"]) / "base"
    AutoModel.from_pretrained(models["masked"]).save_pretrained(base)
    AutoTokenizer.from_pretrained(models["masked"]).save_pretrained(base)
    run(continued_options(tiny, "masked", base, output_dir=base / "on"), max_steps=1)
    assert "new weights: lm_head" in capsys.readouterr().out


def test_bert_can_be_pretrained_further(tiny, tmp_path):
    """With a tokenizer of its own kind, in which a text begins and ends with `[CLS]` and `[SEP]` alone."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "sleeps", "."]
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)})
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForPreTraining(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=24, **shape))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "bert")
    run(continued_options(tiny, "pairs", tmp_path / "bert"))
    trained = AutoModelForPreTraining.from_pretrained(tiny["output_dir"])
    assert isinstance(trained, BertForPreTraining)
    word, trained_word = (each.bert.embeddings.word_embeddings.weight for each in (model, trained))
    assert not torch.equal(word, trained_word)
    with pytest.raises(UserError, match=r"max_length=25, but .*bert has positions for 24 tokens; set"):
        run(continued_options(tiny, "pairs", tmp_path / "bert"), max_length=25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model", "options", "message"),
    [
        (
            "masked",
            "masked",
            {"d_model": 16},
            "d_model has no effect here: the model that training",
        ),
        (
            "masked",
            "masked",
            {"vocab_size": 300},
            "vocab_size has no effect here: the model that training",
        ),
        ("masked", "masked", {"tokenizer_kind": "byte"}, "tokenizer_kind has no effect here"),
        ("causal", "causal", {"decoder_layers": 2}, "decoder_layers has no effect here"),
        (
            "masked",
            "causal",
            {},
            "type 'vaswani_decoder', which AutoModelForMaskedLM does not load; expected an enc",
        ),
        (
            "causal",
            "masked",
            {},
            "type 'vaswani_encoder', which AutoModelForCausalLM does not load; expected a dec",
        ),
        (
            "pairs",
            "masked",
            {},
            "next_sentence needs a model with token types and a head for it, and .* has none",
        ),
        ("masked", "nowhere/at/all", {}, "model folder nowhere/at/all does not exist"),
        ("masked", "masked", {"max_length": 1000}, "max_tokens_per_batch=400 is too small for a sequence"),
        ("causal", "causal", {"attn_implementation": "fast"}, "fast"),
    ],
)
def test_options_that_contradict_the_pretrained_model_raise_an_error(
    tiny, models, kind, model, options, message
):
    with pytest.raises(UserError, match=message):
        run(continued_options(tiny, kind, models.get(model, model), **options))
    assert not (Path(tiny["output_dir"]) / "model.safetensors").exists()


def test_words_of_one_token_are_not_masked_as_wholes(tiny, tmp_path):
    tokenizer = train_tokenizer(["a few words"] * 3, 300, kind="char", purpose="masked")
    tokenizer.save_pretrained(tmp_path / "characters")
    options = {"tokenizer": tmp_path / "characters", "whole_word_masking": True}
    with pytest.raises(UserError, match=r"has no effect with the tokenizer in \S+characters"):
        run(tiny, **OBJECTIVES["masked"], **options)


def test_a_decoder_with_one_token_for_begin_and_end_is_not_packed(tiny, models, tmp_path):
    shutil.copytree(models["causal"], tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model_hashes.json").unlink()  # those of the tokenizer that was there before
    with pytest.raises(UserError, match="packed ones cannot be told apart; set pack=false"):
        run(continued_options(tiny, "causal", tmp_path / "model"))
    run(continued_options(tiny, "causal", tmp_path / "model", pack=False))


def test_a_decoder_whose_tokenizer_is_not_of_bytes_is_measured_without_them(tiny, tmp_path, caplog):
    words = sorted({word for text in toy_documents(60) for word in text.split()})
    names = ["<s>", "</s>", "<pad>", "<unk>", *words[:200]]
    vocabulary = {token: number for number, token in enumerate(names)}
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path / "words")
    options = {**tiny, **OBJECTIVES["causal"], "tokenizer": tmp_path / "words"}
    with pytest.raises(UserError, match=r"is not computed; choose one of loss, perplexity, accuracy$"):
        run(options, metric_for_best_model="bits_per_byte")
    scores = run(options)
    assert scores.keys() >= {"test_perplexity", "test_accuracy"}
    assert not any("bits_per_byte" in name for name in scores)
    assert (
        "is not one of bytes: perplexities are per token, and bits per byte are not measured" in caplog.text
    )


# --------------------------------------------------------------------------------------------- the best model


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("masked", "perplexity"),
        ("pairs", "next_sentence_accuracy"),
        ("causal", "eval_perplexity"),
        ("causal", "bits_per_byte"),
    ],
)
def test_the_best_checkpoint_follows_the_metric(tiny, kind, metric):
    """The learning rate is so high that the best checkpoint of a language model is not the last."""
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    run(tiny, **OBJECTIVES[kind], **options, metric_for_best_model=metric, learning_rate=0.5)
    state = json.loads((Path(tiny["output_dir"]) / "trainer_state.json").read_text())
    key = f"eval_{metric.removeprefix('eval_')}"
    scores = {entry["step"]: entry[key] for entry in state["log_history"] if key in entry}
    assert len(scores) == 3
    best = max(scores.values()) if metric.endswith("accuracy") else min(scores.values())
    assert state["best_metric"] == best
    assert scores[int(state["best_model_checkpoint"].rpartition("-")[2])] == best
    if not metric.endswith("accuracy"):
        assert best < scores[6]


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("masked", {"text_field": "body"}, "text_field: .* has no field 'body'; it has 'text', 'number'"),
        ("masked", {"objective": "span"}, "objective=span is unknown; choose one of masked, causal"),
        ("masked", {"vocab_size": 100}, "vocab_size=100 is too small: it must hold 256 bytes and 4 special"),
        ("causal", {"vocab_size": 258}, "vocab_size=258 is too small"),
        ("masked", {"pack": True}, "unknown flag '--pack'"),
        ("masked", {"decoder_layers": 2}, "unknown flag '--decoder_layers'; did you mean '--encoder_layers'"),
        ("causal", {"next_sentence": True}, "unknown flag '--next_sentence'"),
        ("masked", {"label_smoothing_factor": 0.1}, "label_smoothing_factor has no effect here"),
        ("masked", {"predict_with_generate": True}, "unknown flag '--predict_with_generate'"),
        ("masked", {"max_length": 1000}, "max_length=1000 is longer than max_position_embeddings=512"),
        ("masked", {"max_length": 4}, "max_length=4 must be at least 8"),
        ("masked", {"max_tokens_per_batch": 20}, "max_tokens_per_batch=20 is too small for a sequence"),
        ("masked", {"mask_probability": 0}, "mask_probability=0.0 must be above 0 and at most 1"),
        (
            "masked",
            {"metric_for_best_model": "bits_per_byte"},
            "bits_per_byte is not computed; choose one of loss, perplexity, accuracy$",
        ),
        ("causal", {"metric_for_best_model": "f1"}, "loss, perplexity, accuracy, bits_per_byte$"),
        ("masked", {"streaming": True, "max_steps": -1}, "streaming=true needs max_steps"),
        (
            "masked",
            {"streaming": True, "dataloader_num_workers": 2},
            "not in dataloader_num_workers=2; set that to 0 or 1",
        ),
        (
            "masked",
            {"whole_word_masking": True, "tokenizer_kind": "char"},
            "no effect with tokenizer_kind=char",
        ),
        ("masked", {"d_model": 18, "encoder_attention_heads": 4}, "d_model=18 must be divisible by"),
        ("causal", {"decoder_attention": ["sparse"]}, "sparse attention does not separate packed documents"),
        ("masked", {"train_file": "nowhere.jsonl"}, "no such file: nowhere.jsonl"),
        ("masked", {"documents": "page"}, "documents: invalid choice: 'page'"),
        ("masked", {"lr_scheduler_type": "linear", "learning_rate": None}, "linear needs a learning_rate"),
    ],
)
def test_invalid_options_give_an_error_before_writing_files(tiny, capsys, kind, options, message):
    assert re.search(message, refusal("pretrain", tiny | OBJECTIVES[kind] | options, capsys))


def test_texts_that_are_all_empty_give_an_error(tiny, tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": " "}\n')
    told = refusal("pretrain", tiny | OBJECTIVES["masked"] | {"train_file": empty}, capsys)
    assert "can be used: kept 0 of 1 rows; left out: 1 empty" in told


def test_pairs_need_two_documents(tiny, tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "The dog sleeps. The dog sings."}\n')
    with pytest.raises(UserError, match="next_sentence needs two documents or more"):
        run({**tiny, "train_file": path}, **OBJECTIVES["pairs"])


# ---------------------------------------------------------------------------------------------- configuration


def test_the_objective_chooses_the_fields(tmp_path, caplog):
    assert isinstance(resolve({}), MaskedLMConfig)
    assert isinstance(resolve({"objective": "causal"}), CausalLMConfig)
    path = tmp_path / "run.yaml"
    path.write_text("objective: causal\ndecoder_layers: 3\n")
    config = load_config(path, ["--d_model=96"], PretrainingConfig)
    assert (config.model.decoder_layers, config.model.d_model, config.task.pack) == (3, 96, True)
    assert not caplog.text
    assert isinstance(load_config(path, ["--objective=masked"], PretrainingConfig), MaskedLMConfig)
    assert "left out, as the flags choose another objective than" in caplog.text
    assert caplog.text.strip().endswith("run.yaml: decoder_layers")
