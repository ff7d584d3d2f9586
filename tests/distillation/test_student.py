"""A student has the requested layers and otherwise equals its teacher."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LEDConfig,
    LEDForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from toy_labels import toy_config, toy_tokenizer
from toy_translation import save_toy_checkpoint
from vaswani import (
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniForMultipleChoice,
    VaswaniForNextSentencePrediction,
)
from vaswani.data.tokenization import load_tokenizers
from vaswani.distillation.student import parse_layers, save_student, student_from_teacher
from vaswani.errors import UserError
from vaswani.inference.translate.ensembling import Ensemble

KINDS = ["ours", "marian", "bart", "t5"]
SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 16,
    "encoder_layers": 4,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "dropout": 0.0,
}
T5_SHAPE = {"d_kv": 8, "d_ff": 24, "num_layers": 4, "num_decoder_layers": 3, "num_heads": 2}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def teacher_of(kind: str, **fields: Any) -> PreTrainedModel:
    """A model of 4 encoder and 3 decoder layers in which no two weights are alike."""
    if kind == "ours":
        model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, **fields}))
    elif kind == "t5":
        sizes = {"vocab_size": 61, "d_model": 16, "initializer_factor": 2.0, "dropout_rate": 0.0}
        model = T5ForConditionalGeneration(T5Config(**{**sizes, **T5_SHAPE, **IDS, **fields}))
    else:
        config, cls = {
            "marian": (MarianConfig, MarianMTModel),
            "bart": (BartConfig, BartForConditionalGeneration),
        }[kind]
        model = cls(config(**{**SHAPE, **IDS, "init_std": 0.3, "max_position_embeddings": 32, **fields}))
    return with_random_vectors(model)


def with_random_vectors(model: PreTrainedModel) -> PreTrainedModel:
    """Randomize biases and norms too, so that a missing one is noticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(3, 61, (2, length), generator=generator) for length in (7, 5))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    data = {"input_ids": source, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        data |= {"decoder_input_ids": target, "use_cache": False}
    with torch.no_grad():
        return model(**data).logits


def layers_of(stack: nn.Module) -> nn.ModuleList:
    return next(child for child in stack.children() if isinstance(child, nn.ModuleList))


def keep_layers(stack: nn.Module, layers: Sequence[int]) -> None:
    """Delete all other layers, in place."""
    name = next(name for name, child in stack.named_children() if isinstance(child, nn.ModuleList))
    setattr(stack, name, nn.ModuleList(layers_of(stack)[index] for index in layers))


def without_other_layers(
    teacher: PreTrainedModel, encoder_layers: Sequence[int], decoder_layers: Sequence[int]
) -> PreTrainedModel:
    """The reference: the teacher itself, of which modules are deleted."""
    reference = copy.deepcopy(teacher)
    for stack, layers in (
        (reference.get_encoder(), encoder_layers),
        (reference.get_decoder(), decoder_layers),
    ):
        first = layers_of(stack)[0]
        keep_layers(stack, layers)
        if isinstance(
            teacher, T5ForConditionalGeneration
        ):  # all layers use the bias that the first one keeps
            source, target = (block.layer[0].SelfAttention for block in (first, layers_of(stack)[0]))
            target.relative_attention_bias = source.relative_attention_bias
            target.has_relative_attention_bias = True
    return reference


# Which layers.


@pytest.mark.parametrize(
    ("text", "layers"), [("6", 6), ("0,2,5", [0, 2, 5]), ("5,", [5]), ("2, 0", [2, 0]), (None, None)]
)
def test_layers_are_read_from_text(text: str | None, layers: int | list[int] | None) -> None:
    assert parse_layers(text, "encoder_layers") == layers


# The student.


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_of_all_layers_equals_its_teacher(kind: str) -> None:
    teacher = teacher_of(kind)
    for layers in ((), (4, 3), (range(4), range(3))):
        student = student_from_teacher(teacher, *layers)
        assert type(student) is type(teacher)
        assert not student.training
        assert torch.equal(logits_of(student), logits_of(teacher))


@pytest.mark.parametrize(
    ("wanted", "layers"),
    [((2, 1), ([0, 3], [0])), (([0, 1, 3], [0, 2]), ([0, 1, 3], [0, 2])), (([3, 1], [2]), ([3, 1], [2]))],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_student_computes_what_the_teacher_computes_without_its_other_layers(
    kind: str, wanted: Any, layers: Any
) -> None:
    teacher = teacher_of(kind)
    student = student_from_teacher(teacher, *wanted)
    reference = without_other_layers(teacher, *layers)
    torch.testing.assert_close(logits_of(student), logits_of(reference), rtol=0, atol=0)
    assert (logits_of(student) - logits_of(teacher)).abs().max() > 0.01
    assert student.num_parameters() < teacher.num_parameters()
    pairs = zip(
        (student.get_encoder(), student.get_decoder()),
        (teacher.get_encoder(), teacher.get_decoder()),
        layers,
        strict=True,
    )
    for small, large, chosen in pairs:
        assert len(layers_of(small)) == len(chosen)
        for layer, index in zip(layers_of(small), chosen, strict=True):
            weights = layers_of(large)[index].state_dict()
            for name, weight in layer.state_dict().items():
                if "relative_attention_bias" not in name:
                    assert torch.equal(weight, weights[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_that_is_not_named_stays_whole(kind: str) -> None:
    teacher = teacher_of(kind)
    for layers, depths in (((1, None), (1, 3)), ((None, 1), (4, 1))):
        student = student_from_teacher(teacher, *layers)
        stacks = student.get_encoder(), student.get_decoder()
        assert tuple(len(layers_of(stack)) for stack in stacks) == depths


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_generates_with_its_cache_as_without(kind: str) -> None:
    student = student_from_teacher(teacher_of(kind), [3, 1], [2, 0])
    options = {"input_ids": torch.randint(3, 61, (3, 6)), "max_new_tokens": 8, "num_beams": 2}
    torch.testing.assert_close(
        student.generate(**options, use_cache=True), student.generate(**options, use_cache=False)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_shares_no_weights_with_its_teacher_and_can_be_trained(kind: str) -> None:
    teacher = teacher_of(kind).requires_grad_(False)
    before = logits_of(teacher)
    student = student_from_teacher(teacher, 2, 1)
    student.generation_config.num_beams = 7
    student(input_ids=torch.tensor([[5, 6]]), labels=torch.tensor([[7, 8]])).loss.backward()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
    assert torch.equal(logits_of(teacher), before)
    assert (teacher.generation_config.num_beams, teacher.config.num_hidden_layers) == (None, 4)


def ties_of(model: PreTrainedModel) -> set[tuple[str, ...]]:
    """The names of each parameter that has more than one."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {tuple(same) for same in names.values() if len(same) > 1}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_student_keeps_tied_and_untied_weights(kind: str, tied: bool) -> None:
    teacher = teacher_of(kind, tie_word_embeddings=tied)
    student = student_from_teacher(teacher, 2, 1)
    assert ties_of(student) == ties_of(teacher)
    assert any("lm_head.weight" in names for names in ties_of(student)) == (tied or kind == "t5")  # always
    layers = layers_of(teacher.get_encoder())[1], layers_of(teacher.get_decoder())[1]
    dropped = sum(2 * parameter.numel() for layer in layers for parameter in layer.parameters())
    assert teacher.num_parameters() - student.num_parameters() == dropped


def test_each_weight_keeps_its_dtype() -> None:
    assert student_from_teacher(teacher_of("ours").bfloat16(), 2, 1).dtype == torch.bfloat16
    teacher = teacher_of("t5").half()
    for block in teacher.encoder.block:
        block.layer[1].DenseReluDense.wo.float()  # as the library loads T5 in float16
    student = student_from_teacher(teacher, 2, 1)
    assert student.dtype == torch.float16
    assert {block.layer[1].DenseReluDense.wo.weight.dtype for block in student.encoder.block} == {
        torch.float32
    }


def test_a_student_can_have_other_dropout_rates() -> None:
    student = student_from_teacher(teacher_of("ours"), encoder_layers=1, dropout=0.45, word_dropout=0.2)
    assert (student.config.dropout, student.config.word_dropout) == (0.45, 0.2)
    source = torch.tensor([[5, 6, 7]])
    rows = [student.train().get_encoder()(input_ids=source).last_hidden_state for _ in range(2)]
    assert not torch.equal(*rows)


def test_each_copied_layer_keeps_its_attention_type() -> None:
    fields = {"sparse_block_size": 1, "sparse_window_blocks": 1, "sparse_global_blocks": 0}
    teacher = teacher_of(
        "ours",
        encoder_attention=["sparse", "full", "full", "sparse"],
        decoder_attention=["full", "sparse", "full"],
        **fields,
        sparse_random_blocks=0,
    )
    student = student_from_teacher(teacher, [1, 3], [1])
    assert student.config.encoder_attention == ["full", "sparse"]
    assert student.config.decoder_attention == ["sparse"]
    assert torch.equal(logits_of(student), logits_of(without_other_layers(teacher, [1, 3], [1])))
    student.config.validate()
    assert student_from_teacher(teacher_of("ours", encoder_attention="sparse"), 2).config.layer_attention(
        "encoder"
    ) == ["sparse", "sparse"]


def test_per_layer_lists_of_library_configs_follow_the_copied_layers() -> None:
    """The sixth layer of Gemma 3 sees all, the others a window; each encoder layer of LED has its own."""
    shape = {
        "vocab_size": 61,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 6,
        "head_dim": 4,
    }
    config = Gemma3TextConfig(
        **shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=4, pad_token_id=0
    )
    teacher = Gemma3ForCausalLM(config)
    student: Any = student_from_teacher(teacher, decoder_layers=[0, 5])
    assert student.config.layer_types == ["sliding_attention", "full_attention"]
    assert [layer.self_attn.is_sliding for layer in student.model.layers] == [True, False]
    student.config.validate()
    windows = {"attention_window": [4, 8, 16, 8], "max_encoder_position_embeddings": 32}
    led: Any = LEDForConditionalGeneration(LEDConfig(**{**SHAPE, **IDS, **windows}))
    assert student_from_teacher(led, encoder_layers=[0, 2]).config.attention_window == [4, 16]
    types = [[["global", "local"], 2]]
    neo = GPTNeoForCausalLM(
        GPTNeoConfig(vocab_size=61, hidden_size=16, num_layers=4, num_heads=4, attention_types=types)
    )
    with pytest.raises(
        UserError, match="'gpt_neo' model sets the attention of its layers with attention_types"
    ):
        student_from_teacher(neo, decoder_layers=[0, 2])


def test_models_of_one_stack_take_one_number() -> None:
    encoder = BertForMaskedLM(
        BertConfig(
            vocab_size=61, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=8
        )
    )
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=16, n_layer=4, n_head=2))
    for teacher, stack, other in ((encoder, "encoder", "decoder"), (decoder, "decoder", "encoder")):
        student = student_from_teacher(with_random_vectors(teacher), **{f"{stack}_layers": [3, 1]})
        reference = copy.deepcopy(teacher)
        keep_layers(getattr(reference, f"get_{stack}")(), [3, 1])
        assert torch.equal(logits_of(student), logits_of(reference))
        with pytest.raises(UserError, match=f"has no list of {other} layers; leave out {other}_layers"):
            student_from_teacher(teacher, **{f"{other}_layers": 2})


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_student_comes_back_through_the_auto_class(kind: str, tmp_path: Path) -> None:
    teacher = teacher_of(kind)
    teacher.generation_config.num_beams = 3
    student = student_from_teacher(teacher, [3, 1], 1)
    student.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded), logits_of(student))
    assert loaded.generation_config.num_beams == 3


# Saving.


@pytest.mark.parametrize("separate", [False, True])
def test_a_student_is_saved_with_the_tokenizers_of_its_teacher(separate: bool, tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "teacher", separate, encoder_layers=2)
    counts = save_student(folder, tmp_path / "student", encoder_layers=1)
    models = [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name) for name in ("teacher", "student")]
    assert counts == tuple(model.num_parameters() for model in models)
    expected, found = load_tokenizers(folder), load_tokenizers(tmp_path / "student")
    assert (found[0] is found[1]) == (not separate)
    assert [tokenizer.get_vocab() for tokenizer in found] == [tokenizer.get_vocab() for tokenizer in expected]
    assert found[1]("7 8")["input_ids"] == expected[1]("7 8")["input_ids"]


def test_an_output_that_is_not_an_empty_folder_is_refused(tmp_path: Path) -> None:
    teacher = save_toy_checkpoint(tmp_path / "teacher")
    (tmp_path / "file").write_text("text")
    for output in (teacher, tmp_path / "file"):
        with pytest.raises(UserError, match=f"output {output} is not an empty folder; give another one"):
            save_student(teacher, output)
    (tmp_path / "empty").mkdir()
    save_student(teacher, tmp_path / "empty")


# What cannot be done.


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (5, "encoder_layers=5 is impossible: the teacher has 4; give 1 to 4"),
        (0, "encoder_layers=0 is impossible"),
        (-1, "encoder_layers=-1 is impossible"),
        ([0, 4], "encoder_layers=[0, 4] names layer 4, but the teacher's are 0 to 3"),
        ([-1, 2], "encoder_layers=[-1, 2] names layer -1, but the teacher's are 0 to 3"),
        ([0, 2, 2], "encoder_layers=[0, 2, 2] must name one layer or more, each once"),
        ([], "encoder_layers=[] must name one layer or more"),
    ],
)
def test_layers_that_the_teacher_does_not_have(layers: Any, message: str) -> None:
    for kind in KINDS:
        with pytest.raises(UserError) as error:
            student_from_teacher(teacher_of(kind), layers)
        assert str(error.value).startswith(message)
        with pytest.raises(UserError, match="decoder_layers"):
            student_from_teacher(teacher_of(kind), None, layers)


def test_an_ensemble_has_no_layers_to_copy() -> None:
    with pytest.raises(UserError, match="an ensemble has no layers to copy; give one of its models"):
        student_from_teacher(Ensemble([teacher_of("ours"), teacher_of("ours")]), 1)


@pytest.mark.parametrize("text", ["six", "", "1.5", "0,x", ",", "0,,2"])
def test_text_that_names_no_layers(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse_layers(text, "decoder_layers")
    assert str(error.value).startswith(
        f"decoder_layers={text!r} is not a number; give so many layers (6), or"
    )


@pytest.mark.parametrize("model_class", [VaswaniForMultipleChoice, VaswaniForNextSentencePrediction])
def test_a_saved_student_keeps_the_head_of_its_teacher(model_class: Any, tmp_path: Path) -> None:
    teacher = model_class(toy_config(encoder_layers=2))
    teacher.save_pretrained(tmp_path / "teacher")
    toy_tokenizer().save_pretrained(tmp_path / "teacher")
    save_student(tmp_path / "teacher", tmp_path / "student", encoder_layers=1)
    student = model_class.from_pretrained(tmp_path / "student")
    assert student.config.architectures == [model_class.__name__]
    weights = teacher.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in student.state_dict().items())
