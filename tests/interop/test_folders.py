"""`vaswani convert` and `vaswani combine`, from folder to folder, and what is not supported."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from library_models import TRANSLATORS, VOCAB, padded_batch, randomize
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertLMHeadModel,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
)

import given_tokenizers
from toy_translation import toy_tokenizer
from vaswani import (
    Translator,
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSequenceClassification,
)
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.interop import combine
from vaswani.interop.folders import combine_folders, convert_folder

BERT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
SENTENCES = [
    f"the {size} {animal} sees {number} dogs"
    for size in ("big", "small")
    for animal in ("cat", "cow", "hen")
    for number in range(9)
]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as OPUS-MT's are: sentencepiece models, a vocabulary, padding as the last token."""
    folder = tmp_path_factory.mktemp("marian")
    (folder / "text").write_text("\n".join(SENTENCES))
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / side), vocab_size=32, minloglevel=2
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    names = ["</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(3, len(pieces))), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    pad = len(names) - 1
    tokens = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    shape = {**TRANSLATORS[0][2], "vocab_size": len(names), "bos_token_id": None, **tokens}
    shape["max_position_embeddings"] = 64
    model = randomize(MarianMTModel(MarianConfig(**shape)), scale=0.4)
    model.generation_config.update(num_beams=2, max_length=9, bad_words_ids=[[pad]])
    model.save_pretrained(folder)
    return folder


def test_a_converted_opus_checkpoint_gives_the_same_translations(
    marian: Path, tmp_path: Path, capsys
) -> None:
    assert run(["convert", str(marian), str(tmp_path / "ours")]) == 0
    printed = capsys.readouterr().out
    assert "MarianMTModel → VaswaniForConditionalGeneration" in printed
    assert "with its tokenizer" in printed
    theirs, ours = (AutoModelForSeq2SeqLM.from_pretrained(folder) for folder in (marian, tmp_path / "ours"))
    assert type(ours).__name__ == "VaswaniForConditionalGeneration"
    tokenizers = MarianTokenizer.from_pretrained(marian), AutoTokenizer.from_pretrained(tmp_path / "ours")
    texts = [
        tokenizer.batch_decode(
            model.generate(**tokenizer(SENTENCES[:4], return_tensors="pt", padding=True)),
            skip_special_tokens=True,
        )
        for model, tokenizer in zip((theirs, ours), tokenizers, strict=True)
    ]
    assert texts[0] == texts[1]
    assert any(texts[0])
    options = {"num_beams": 2, "max_length": 9, "length_penalty": 0.0}
    assert len(Translator.from_pretrained(tmp_path / "ours", **options)(SENTENCES[:4])) == 4


def test_an_opus_checkpoint_is_bit_identical_after_conversion_and_back(marian: Path, tmp_path: Path) -> None:
    convert_folder(str(marian), tmp_path / "ours")
    convert_folder(str(tmp_path / "ours"), tmp_path / "back", to="marian")
    before, after = (load_file(folder / "model.safetensors") for folder in (marian, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert (
        tokenizer(SENTENCES[0]).input_ids == MarianTokenizer.from_pretrained(marian)(SENTENCES[0]).input_ids
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    randomize(BertForMaskedLM(BertConfig(**BERT))).to(dtype).save_pretrained(tmp_path / "bert")
    convert_folder(str(tmp_path / "bert"), tmp_path / "ours")
    assert {tensor.dtype for tensor in load_file(tmp_path / "ours" / "model.safetensors").values()} == {dtype}
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", dtype="auto").dtype == dtype


def test_a_bert_checkpoint_is_converted_with_its_tokenizer(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "see"]
    words += [f"[unused{number}]" for number in range(VOCAB - len(words))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    randomize(BertForMaskedLM(BertConfig(**BERT))).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    made = convert_folder(str(tmp_path / "bert"), tmp_path / "ours")
    assert made.has_tokenizer
    inputs = tokenizer(["the dogs see [MASK]"], return_tensors="pt")
    again = AutoTokenizer.from_pretrained(tmp_path / "ours")(["the dogs see [MASK]"], return_tensors="pt")
    assert again.keys() == inputs.keys()
    assert all(torch.equal(again[name], inputs[name]) for name in inputs)
    theirs, ours = (AutoModelForMaskedLM.from_pretrained(tmp_path / name) for name in ("bert", "ours"))
    torch.testing.assert_close(ours(**again).logits, theirs(**inputs).logits, atol=1e-5, rtol=1e-5)


def test_another_architecture_can_be_chosen_for_unused_weights(tmp_path: Path) -> None:
    """BERT's own checkpoints hold the head of both tasks, and name the class of one."""
    model = randomize(BertForPreTraining(BertConfig(**BERT)))
    model.save_pretrained(tmp_path / "bert")
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForMaskedLM"]})
    )
    with pytest.raises(
        UserError,
        match=r"hold \d+ that .* no parameter for, such as bert.pooler.dense.bias; .*--architecture",
    ):
        convert_folder(str(tmp_path / "bert"), tmp_path / "ours")
    made = convert_folder(str(tmp_path / "bert"), tmp_path / "ours", architecture="BertForPreTraining")
    assert made.after == "VaswaniForPreTraining"


class Harmless:
    """Unpickled, it would leave a file behind."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "bert"
    randomize(BertForMaskedLM(BertConfig(**BERT))).save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    trace = tmp_path / "was_run"
    torch.save({**state, "payload": Harmless(trace)}, folder / "pytorch_model.bin")
    assert run(["convert", str(folder), str(tmp_path / "ours")]) == 2
    assert "cannot be loaded: they are pickled, and " in capsys.readouterr().err
    assert not trace.exists()
    assert not (tmp_path / "ours").exists()
    with (tmp_path / "control").open("wb") as file:
        pickle.dump(Harmless(trace), file)
    pickle.loads((tmp_path / "control").read_bytes())
    assert trace.exists(), "it would have been noticed"


def save_tiny_marian(folder: Path, **fields: Any) -> MarianMTModel:
    stacks = {
        f"{stack}_{name}": 2 for stack in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    tokens = {"vocab_size": 50, "pad_token_id": 0, "decoder_start_token_id": 0}
    config = MarianConfig(**tokens, **stacks, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, **fields)
    model = randomize(MarianMTModel(config))
    model.save_pretrained(folder)
    return model


def test_positions_that_are_not_saved_do_not_count_as_missing_weights(tmp_path: Path) -> None:
    model = save_tiny_marian(tmp_path / "marian")
    saved = sum(weight.numel() for weight in load_file(tmp_path / "marian" / "model.safetensors").values())
    assert sum(weight.numel() for weight in model.parameters()) > 2 * saved
    made = convert_folder(str(tmp_path / "marian"), tmp_path / "ours")
    assert made.after == "VaswaniForConditionalGeneration"


@pytest.mark.parametrize("fields", [{"max_position_embeddings": 2**20}, {"encoder_layers": 20}], ids=str)
def test_a_model_larger_than_its_weights_is_not_allocated(fields: dict[str, int], tmp_path: Path) -> None:
    save_tiny_marian(tmp_path / "marian")
    file = tmp_path / "marian" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    with pytest.raises(UserError, match=r"describes a model of [\d,]+ parameters, and the weights .* hold"):
        convert_folder(str(tmp_path / "marian"), tmp_path / "ours")


def test_pickled_tensors_are_read(tmp_path: Path) -> None:
    model = randomize(BertForMaskedLM(BertConfig(**BERT)))
    model.config.save_pretrained(tmp_path / "bert")
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForMaskedLM"]})
    )
    torch.save(model.state_dict(), tmp_path / "bert" / "pytorch_model.bin")
    convert_folder(str(tmp_path / "bert"), tmp_path / "ours")
    assert (tmp_path / "ours" / "model.safetensors").is_file()


@pytest.mark.parametrize("direction", ["to", "from"])
def test_the_wrong_direction_raises_an_error(direction: str, tmp_path: Path, capsys) -> None:
    randomize(BertForMaskedLM(BertConfig(**BERT))).save_pretrained(tmp_path / "bert")
    convert_folder(str(tmp_path / "bert"), tmp_path / "ours")
    arguments = ["bert", "--to", "gpt2"] if direction == "to" else ["ours"]
    assert run(["convert", str(tmp_path / arguments[0]), str(tmp_path / "out"), *arguments[1:]]) == 2
    expected = (
        "--to exports vaswani models; leave it out" if direction == "to" else "is already a vaswani model"
    )
    assert expected in capsys.readouterr().err


def test_an_unsupported_model_raises_an_error_with_the_supported_ones(tmp_path: Path, capsys) -> None:
    BertLMHeadModel(BertConfig(**BERT, is_decoder=True)).save_pretrained(tmp_path / "bert")
    assert run(["convert", str(tmp_path / "bert"), str(tmp_path / "ours")]) == 2
    message = capsys.readouterr().err
    assert "this is a 'bert' model: BertLMHeadModel cannot be converted; these can: MarianModel" in message
    assert run(["convert", str(tmp_path / "bert"), str(tmp_path / "bert")]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert run(["convert", str(tmp_path / "nothing"), str(tmp_path / "ours")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [BertForMultipleChoice, BertForNextSentencePrediction])
def test_every_head_is_compared(kind: Any, tmp_path: Path) -> None:
    kind(BertConfig(**BERT)).save_pretrained(tmp_path / "bert")
    assert convert_folder(str(tmp_path / "bert"), tmp_path / "ours").difference < 1e-4


def test_weights_that_lack_a_tensor_raise_an_error(tmp_path: Path) -> None:
    model = randomize(
        GPT2LMHeadModel(
            GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        )
    )
    state = {
        name: tensor for name, tensor in model.state_dict().items() if name != "transformer.h.0.ln_1.bias"
    }
    model.save_pretrained(tmp_path / "gpt2", state_dict=state)
    with pytest.raises(UserError, match=r"lack 1 .*, such as transformer.h.0.ln_1.bias; .* loaded as GPT2LM"):
        convert_folder(str(tmp_path / "gpt2"), tmp_path / "ours")


# ----------------------------------------------------------------------------------------------- combination

SHARED: dict[str, Any] = {
    "d_model": 24,
    "activation_function": "gelu",
    "norm_order": "pre",
    "embedding_norm": True,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 40,
}


def encoder(**fields: Any) -> VaswaniForMaskedLM:
    shape = {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 40}
    return randomize(
        VaswaniForMaskedLM(VaswaniEncoderConfig(vocab_size=300, **{**SHARED, **shape, **fields}))
    )


def decoder(**fields: Any) -> VaswaniForCausalLM:
    shape = {"decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    return randomize(
        VaswaniForCausalLM(VaswaniDecoderConfig(**{"vocab_size": 310, **SHARED, **shape, **fields}))
    )


def test_two_halves_share_no_embedding() -> None:
    halves = encoder(), decoder(vocab_size=300)
    assert combine(*halves).config.share_encoder_decoder_embeddings is False
    with pytest.raises(UserError, match="would replace the encoder's embeddings by the decoder's"):
        combine(*halves, share_encoder_decoder_embeddings=True)
    alone = combine(encoder(), None, share_encoder_decoder_embeddings=True)
    assert alone.model.decoder.embed_tokens.weight is alone.model.encoder.embed_tokens.weight


@pytest.mark.parametrize("position_embedding", ["learned", "sinusoidal"])
@pytest.mark.parametrize("scale_embedding", [False, True])
def test_combined_halves_give_the_same_outputs_as_before(
    position_embedding: str, scale_embedding: bool
) -> None:
    fields = {"position_embedding": position_embedding, "scale_embedding": scale_embedding}
    halves = encoder(**fields), decoder(**fields)
    model = combine(*halves).eval()
    assert (model.config.encoder_layers, model.config.decoder_layers) == (2, 3)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (300, 310)
    batch = padded_batch("left")
    states = model.model.encoder(**batch).last_hidden_state
    expected = halves[0].model(**batch).last_hidden_state
    shown = batch["attention_mask"].bool()
    torch.testing.assert_close(states[shown], expected[shown], atol=1e-5, rtol=1e-5)
    for layer in model.model.decoder.layers:  # without the new attention, the decoder is what it was
        layer.encoder_attn.out_proj.weight.data.zero_()
    ids = batch["input_ids"]
    actual = model(input_ids=ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(actual, halves[1](ids).logits, atol=1e-5, rtol=1e-5)


def test_halves_with_equal_widths_of_keys_combine() -> None:
    for halves in ((encoder(), decoder(key_dim=8)), (encoder(key_dim=12), decoder())):
        config = combine(*halves).config
        assert config.key_dim == (8 if halves[0].config.key_dim is None else 12)
    assert combine(encoder(), decoder()).config.key_dim is None
    with pytest.raises(UserError, match="the encoder has key_dim=8 and the decoder key_dim=3"):
        combine(encoder(), decoder(key_dim=3))


def test_a_single_half_sets_the_shape_of_the_other() -> None:
    model = combine(encoder(), None, decoder_layers=1, dropout=0.3)
    assert (model.config.decoder_layers, model.config.decoder_ffn_dim, model.config.dropout) == (1, 40, 0.3)
    assert torch.equal(model.model.encoder.layers[1].fc1.weight, encoder().model.encoder.layers[1].fc1.weight)
    model = combine(None, decoder())
    assert model.config.encoder_layers == 3
    assert torch.equal(model.lm_head.weight, decoder().lm_head.weight)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_sparse_half_keeps_its_pattern(stack: str) -> None:
    pattern = {"sparse_block_size": 4, "sparse_window_blocks": 5, "sparse_random_blocks": 1, "sparse_seed": 7}
    makes = {"encoder": encoder, "decoder": decoder}
    half = makes[stack](**{f"{stack}_attention": "sparse"}, **pattern)
    halves = {name: half if name == stack else make() for name, make in makes.items()}
    config = combine(*halves.values()).config
    assert config.sparse_pattern(stack, 0) == half.config.sparse_pattern(stack, 0)


@pytest.mark.parametrize(
    ("halves", "message"),
    [
        (lambda: (encoder(), decoder(norm_order="post")), "the encoder has norm_order='pre' and the decoder"),
        (
            lambda: (encoder(), decoder(max_position_embeddings=50)),
            "max_position_embeddings=40 and the decoder",
        ),
        (
            lambda: (decoder(), None),
            "the encoder is a 'vaswani_decoder' model; expected 'vaswani_encoder'",
        ),
        (lambda: (None, None), "nothing to combine: give an encoder, a decoder or both"),
    ],
)
def test_incompatible_halves_raise_an_error(halves, message: str) -> None:
    with pytest.raises(UserError) as caught:
        combine(*halves())
    assert message in str(caught.value)


def test_combined_from_folders(tmp_path: Path, capsys) -> None:
    tokenizer = toy_tokenizer()
    sizes = {"vocab_size": len(tokenizer)}
    for name, model_class, config in (
        (
            "encoder",
            VaswaniForSequenceClassification,
            VaswaniEncoderConfig(**SHARED, **sizes, encoder_attention_heads=2, encoder_layers=1),
        ),
        (
            "decoder",
            VaswaniForCausalLM,
            VaswaniDecoderConfig(**SHARED, **sizes, decoder_attention_heads=2, decoder_layers=1),
        ),
    ):
        model_class(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    command = ["combine", "--encoder", str(tmp_path / "encoder"), "--decoder", str(tmp_path / "decoder")]
    assert run([*command, str(tmp_path / "both")]) == 0
    printed = capsys.readouterr().out
    assert f"new and untrained: cross-attention (train it with vaswani train --model {tmp_path}" in printed
    told = "the encoder of `encoder` and the decoder of `decoder`. **Its cross-attention is new and untrained"
    assert told in (tmp_path / "both" / "README.md").read_text()
    assert run(["card", "--model", str(tmp_path / "both")]) == 0
    assert told in capsys.readouterr().out
    assert len(Translator.from_pretrained(tmp_path / "both", max_length=5)(["a b"])) == 1
    assert run([*command, str(tmp_path / "both")]) == 2
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "both")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "decoder")
    assert torch.equal(model.lm_head.weight, again.lm_head.weight)


def test_special_tokens_that_a_bert_lacks_come_from_its_tokenizer(tmp_path: Path) -> None:
    """As Rothe et al. (2020): targets begin with [CLS] and end with [SEP]."""
    tokenizer = given_tokenizers.bert(tmp_path)
    config = BertConfig(**{**BERT, "vocab_size": len(tokenizer)})
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    convert_folder(str(tmp_path / "bert"), tmp_path / "ours")
    assert VaswaniEncoderConfig.from_pretrained(tmp_path / "ours").bos_token_id is None
    combine_folders(str(tmp_path / "ours"), None, tmp_path / "both")
    told = "the encoder of `ours`. **Its decoder and cross-attention are new and untrained"
    assert told in (tmp_path / "both" / "README.md").read_text()
    config = VaswaniConfig.from_pretrained(tmp_path / "both")
    assert (config.bos_token_id, config.decoder_start_token_id) == (2, 2)
    assert (config.eos_token_id, config.pad_token_id) == (3, 0)
    translator = Translator.from_pretrained(tmp_path / "both", max_length=5)
    assert len(translator([given_tokenizers.TEXTS[0]])) == 1
