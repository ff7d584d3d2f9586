"""Byte-level tokenizers that reproduce every text exactly.

Subwords follow Sennrich et al. (2016, arXiv:1508.07909), but over bytes, so no text is unknown. The
tokenizers are standard ones of transformers: `AutoTokenizer.from_pretrained(directory)` loads them without
this package, and `tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text` for every text
that holds no special token.

A space belongs to the next word. Every text is encoded with a space in front, which decoding removes, so a
word has the same token at the beginning of a sentence as inside it. Tokenizers of causal models add no space,
because their output follows a prompt. Letters form words (with combining marks and joiners, so Indic
syllables stay whole). Digits and punctuation marks are separate tokens, so numbers are copied digit by digit
and a word is the same token before any punctuation.

In the corpora and commands of this package, text that looks like a special token is ordinary text
(`plain_texts`, see `TextCodec`): "</s>" in a sentence is encoded as four characters. Tokenizers of masked
language models are the exception: users write "<mask>" for a missing word. A direct call of a tokenizer
parses special tokens in its text, as other libraries and chat templates expect.

The special tokens around a text depend on the `Purpose` of the model. If a model learns to write removed
text, the markers of removed text are special tokens too.
"""

import copy
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vaswani.data.text_codec import PLAIN_TEXTS, TextCodec, Tokenizers, exclusive, panics_as_user_errors
from vaswani.errors import UserError, one_line
from vaswani.files.json_files import read_object

PAD_TOKEN, BOS_TOKEN, EOS_TOKEN = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")  # their ids are 0, 1 and 2
MASK_TOKEN = "<mask>"  # its id is 3, in tokenizers that have it
_JSON_FILES = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARIES = ("tokenizer.json", "*vocab*", "*.model", "*.spm", "*.txt")  # of transformers' tokenizers
TARGET_SUBFOLDER = "target_tokenizer"
_HAS_TARGET_TOKENIZER = "has_target_tokenizer"  # key in tokenizer_config.json, which other libraries preserve
NUM_BYTES = 256
_NO_LIMIT = 10**12  # tokens; without a limit, a tokenizer has a far larger `model_max_length`

# "translation" ends a text with </s>; "masked", for models like BERT, encodes <s> text </s> or pairs of
# texts, and has a mask token; "causal" begins with <s> and adds no end, which the model predicts.
Purpose = Literal["translation", "masked", "causal"]
# "bpe" merges frequent pairs of tokens (Sennrich et al., 2016); "unigram" keeps the pieces that make the
# texts most likely (Kudo, 2018, arXiv:1804.10959); "char" has a token for each frequent character, and splits
# other characters into bytes; "byte" has only bytes.
Kind = Literal["bpe", "unigram", "byte", "char"]
_TEMPLATES = {
    "translation": (f"$A {EOS_TOKEN}", f"$A {EOS_TOKEN} $B {EOS_TOKEN}"),
    "masked": (f"{BOS_TOKEN} $A {EOS_TOKEN}", f"{BOS_TOKEN} $A {EOS_TOKEN} $B:1 {EOS_TOKEN}:1"),
    "causal": (f"{BOS_TOKEN} $A", f"{BOS_TOKEN} $A $B"),
}

_WORD = r" ?[\p{L}\p{M}\x{200C}\x{200D}]+"  # the last two are joiners
_DIGIT = r" ?\p{N}"
_PUNCTUATION = r" ?[^\s\p{L}\p{M}\p{N}]"
_SPACE = r"\s+(?!\S)|\s+"  # leaves the last space to the next word
_PIECES = Regex("|".join([_WORD, _DIGIT, _PUNCTUATION, _SPACE]))


def train_tokenizer(
    texts: Iterable[str] | Iterable[Sequence[str]],
    vocab_size: int,
    *,
    kind: Kind = "bpe",
    purpose: Purpose = "translation",
    token_types: bool = False,
    markers: Sequence[str] = (),
    tags: Sequence[str] = (),
    min_frequency: int = 2,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        texts: texts or batches of texts, read once. Only the distinct words are kept, so the corpus may be
            larger than memory. For a vocabulary shared by source and target, give the texts of both.
        vocab_size: tokens in the vocabulary, including special tokens and the 256 bytes. A small corpus may
            yield fewer, so a model's vocabulary size is `len(tokenizer)`.
        kind: kind of tokens (see `Kind`).
        purpose: selects the special tokens around each text (see `Purpose`).
        token_types: return `token_type_ids`, 0 and 1 for the first and second text of a pair.
        markers: additional special tokens that mark removed text; `<mask>` becomes the mask token.
        tags: tokens that texts begin with, together with the space behind them, such as the language to
            translate to. They are part of the text: they stay whole where special tokens in a text do not.
        min_frequency: minimum frequency of a pair of tokens to be merged; ignored by "unigram".
        model_max_length: limit of `truncation=True`; None for no limit, as for sinusoidal positions.

    Raises:
        UserError: `vocab_size` has no room for the bytes and special tokens, or there are no texts.
    """
    framing: dict[str, Any] = {"token_types": token_types, "model_max_length": model_max_length}
    if kind == "byte":
        return _with_tags(byte_tokenizer(purpose=purpose, markers=markers, **framing), tags)
    check_vocab_size(vocab_size, purpose, (*markers, *tags), kind)
    options: dict[str, Any] = {
        "vocab_size": vocab_size - len(tags),
        "special_tokens": _special_tokens(purpose, markers, mask_takes_space=kind != "char"),
        "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
        "show_progress": False,
    }
    trainer: Any
    if kind == "unigram":
        tokenizer, trainer = Tokenizer(models.Unigram()), trainers.UnigramTrainer(**options)
    else:
        trainer = trainers.BpeTrainer(**options, min_frequency=min_frequency)
        tokenizer = Tokenizer(models.BPE())
    tokenizer = _with_characters(tokenizer) if kind == "char" else _with_words(tokenizer, purpose)
    _in_thread(lambda: tokenizer.train_from_iterator(_not_empty(texts), trainer))
    if kind == "unigram":
        tokenizer.model = models.Unigram(_in_fixed_order(json.loads(tokenizer.to_str())["model"]["vocab"]))
    return _with_tags(_for_transformers(tokenizer, purpose, markers, **framing), tags)


def _with_tags(tokenizer: PreTrainedTokenizerFast, tags: Sequence[str]) -> PreTrainedTokenizerFast:
    """Add tokens that take the space behind them: the next word has the same token as without a tag."""
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False, rstrip=True) for tag in tags])
    return tokenizer


_STEP = 1e-4  # difference between the scores that the trainer gives to characters missing from the texts
_DIGITS = 6  # decimals of scores; the trainer's sums differ between runs in the fourteenth


def _in_fixed_order(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the pieces of a unigram vocabulary in an order that depends only on the texts.

    The trainer lists pieces of equal score in the order of a hash table, which differs from run to run. In
    such an order it also assigns scores, from the lowest upwards, to characters that are missing from the
    texts. Special tokens come first and have score 0.
    """
    specials = [(piece, score) for piece, score in pieces if score == 0]
    scores = {piece: round(score, _DIGITS) for piece, score in pieces if score != 0}
    characters = [piece for piece in scores if len(piece) == 1]
    steps = {scores[piece] for piece in characters}
    score, missing = min(scores.values(), default=0.0), []
    while score in steps:
        missing += [piece for piece in characters if scores[piece] == score]
        score = round(score + _STEP, _DIGITS)
    highest_first = sorted((scores[piece] for piece in missing), reverse=True)
    scores |= dict(zip(sorted(missing), highest_first, strict=True))
    return specials + sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _in_thread(work: Callable[[], object]) -> None:
    """Run a function in a thread, so that Ctrl-C and SIGTERM can interrupt it.

    Python handles signals only in the main thread, between Python instructions; a library call in that thread
    could delay them for minutes.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="tokenizer training")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if errors:
        raise errors[0]


def check_vocab_size(
    vocab_size: int, purpose: Purpose, markers: Sequence[str] = (), kind: str = "bpe"
) -> None:
    """Raise a `UserError` unless a vocabulary has room for the bytes and the special tokens.

    A unigram vocabulary needs room for one more token; otherwise its trainer ignores the size.
    """
    special_tokens = _special_tokens(purpose, markers, mask_takes_space=True)
    smallest = NUM_BYTES + len(special_tokens) + (kind == "unigram")
    if vocab_size < smallest:
        raise UserError(
            f"vocab_size={vocab_size} is too small: it must hold {NUM_BYTES} bytes and {len(special_tokens)} "
            f"special tokens; give vocab_size={smallest} or more"
        )


def check_tags(tags: Sequence[str]) -> None:
    """Raise a `UserError` unless each tag is another token, without space around it."""
    for tag in tags:
        if not tag or tag != tag.strip():
            raise UserError(f"source_tags={tag!r} has space around it or is empty; give the tag alone")
        if tag in SPECIAL_TOKENS or tags.count(tag) > 1:
            raise UserError(f"source_tags={tag} is a token already; give each tag once, under another name")


def byte_tokenizer(
    *,
    purpose: Purpose,
    token_types: bool = False,
    markers: Sequence[str] = (),
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which each byte of the UTF-8 text is a token; it needs no training.

    No space is added before a text. Arguments are those of `train_tokenizer`.
    """
    special_tokens = _special_tokens(purpose, markers, mask_takes_space=False)
    names = [*map(str, special_tokens), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    _with_bytes(tokenizer, _PIECES_OF_BYTES)
    tokenizer.add_special_tokens(special_tokens)
    return _for_transformers(tokenizer, purpose, markers, token_types, model_max_length)


def bytes_of_tokens(tokenizer: PreTrainedTokenizerBase) -> npt.NDArray[np.int64]:
    """Return the number of bytes in each token of a byte-level tokenizer: int64 [V]; 0 for special tokens.

    The first token of a text includes the bytes that the tokenizer adds in front (see `bytes_in_front`).
    """
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    lengths = np.array([len(name) for name in names], dtype=np.int64)  # one character per byte
    lengths[tokenizer.all_special_ids] = 0
    return lengths


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if token names have one character per byte; tested on a short text."""
    text = "aé 中"
    (ids,) = TextCodec(tokenizer).token_ids([text], add_special_tokens=False)
    return int(bytes_of_tokens(tokenizer)[ids].sum()) - bytes_in_front(tokenizer) == len(text.encode())


def bytes_in_front(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of bytes that a byte-level tokenizer adds before each text: 1 for a space, else 0."""
    (ids,) = TextCodec(tokenizer).token_ids(["a"], add_special_tokens=False)
    return int(bytes_of_tokens(tokenizer)[ids].sum()) - 1


def length_limit(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the tokenizer's limit on tokens, or None if it has none."""
    longest = tokenizer.model_max_length
    return longest if isinstance(longest, int) and longest < _NO_LIMIT else None


def save_tokenizers(
    source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, directory: str | Path
) -> None:
    """Save the source tokenizer in `directory` and the target tokenizer, if different, in a subfolder."""
    target_directory = Path(directory) / TARGET_SUBFOLDER
    _save_tokenizer(source, Path(directory), has_target=target is not source)
    if target is not source:
        _save_tokenizer(target, target_directory)
    elif target_directory.exists():
        shutil.rmtree(target_directory)  # from an earlier model; it would be loaded with this one


def load_tokenizers(directory: str | Path) -> Tokenizers:
    """Return the source and target tokenizers of a folder, the same object if the vocabulary is shared.

    Raises:
        UserError: the folder or a tokenizer is missing or cannot be read.
    """
    source = _load_tokenizer(Path(directory))
    target_directory = Path(directory) / TARGET_SUBFOLDER
    if target_directory.is_dir():
        return source, _load_tokenizer(target_directory)
    if source.init_kwargs.get(_HAS_TARGET_TOKENIZER):
        raise UserError(
            f"{directory} has the tokenizer of sources alone, as transformers' trainers save it; copy the "
            f"folder {TARGET_SUBFOLDER} of the model that was trained further into it"
        )
    return source, source


def _special_tokens(purpose: Purpose, markers: Sequence[str], mask_takes_space: bool) -> list[AddedToken]:
    """Return the special tokens in the order of their ids.

    With `mask_takes_space`, the mask token of a masked model includes the space before it.
    """
    tokens = [AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS]
    if purpose == "masked":
        tokens.append(AddedToken(MASK_TOKEN, special=True, normalized=False, lstrip=mask_takes_space))
    return tokens + [AddedToken(name, special=True, normalized=False) for name in markers]


_PIECES_OF_BYTES = [
    pre_tokenizers.Split(_PIECES, behavior="isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
]


def _with_words(tokenizer: Tokenizer, purpose: Purpose) -> Tokenizer:
    """Make a tokenizer split texts into words, with a space before the first word unless the model is causal.

    A causal model's continuation is decoded alone and follows a prompt (`pipeline("text-generation")`). A
    space that decoding removed at its beginning would be missing between the two. GPT-2's tokenizer adds no
    space either.
    """
    if purpose == "causal":
        return _with_bytes(tokenizer, _PIECES_OF_BYTES)
    if purpose == "masked":
        # Only the first piece gets a space, not the text after a mask. (Decoding removes a leading space that
        # the text itself has.)
        first_space = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first_space, *_PIECES_OF_BYTES])
    else:
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_PIECES_OF_BYTES)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def _with_characters(tokenizer: Tokenizer) -> Tokenizer:
    """Make a tokenizer split texts into characters, without a space before the first."""
    single = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    return _with_bytes(tokenizer, [single, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _with_bytes(tokenizer: Tokenizer, steps: list[Any]) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _for_transformers(
    tokenizer: Tokenizer,
    purpose: Purpose,
    markers: Sequence[str],
    token_types: bool,
    model_max_length: int | None,
) -> PreTrainedTokenizerFast:
    single, pair = _TEMPLATES[purpose]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[
            (name, SPECIAL_TOKENS.index(name)) for name in (BOS_TOKEN, EOS_TOKEN) if name in single
        ],
    )
    options: dict[str, Any] = {} if model_max_length is None else {"model_max_length": model_max_length}
    if purpose != "masked":  # users write "<mask>"
        options[PLAIN_TEXTS] = True
    else:
        mask = tokenizer.get_added_tokens_decoder()[len(SPECIAL_TOKENS)]
        options |= {"cls_token": BOS_TOKEN, "sep_token": EOS_TOKEN, "mask_token": mask}
    if MASK_TOKEN in markers:
        options["mask_token"] = MASK_TOKEN
    if others := [name for name in markers if name != MASK_TOKEN]:
        options["extra_special_tokens"] = others
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if token_types else [])]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        bos_token=BOS_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="right",
        model_input_names=names,
        clean_up_tokenization_spaces=False,  # keep spaces before punctuation
        **options,
    )


def _not_empty(texts: Iterable[Any]) -> Iterator[Any]:
    """Yield the texts; raise a UserError if there are none."""
    iterator = iter(texts)
    try:
        first = next(iterator)
    except StopIteration:
        raise UserError(
            "there are no texts to train a tokenizer on; check that the corpus is not empty"
        ) from None
    return itertools.chain([first], iterator)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path, has_target: bool = False) -> None:
    drops = tokenizer.is_fast and getattr(tokenizer.backend_tokenizer.model, "dropout", None)
    if drops or has_target != (_HAS_TARGET_TOKENIZER in tokenizer.init_kwargs):
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.init_kwargs.pop(_HAS_TARGET_TOKENIZER, None)
        tokenizer.init_kwargs |= {_HAS_TARGET_TOKENIZER: True} if has_target else {}
    if drops:
        tokenizer.backend_tokenizer.model.dropout = None
    with exclusive(tokenizer):
        if tokenizer.is_fast:  # otherwise the truncation and padding of the last call would be saved
            tokenizer.backend_tokenizer.no_padding()
            tokenizer.backend_tokenizer.no_truncation()
        tokenizer.save_pretrained(directory)


def _load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder; give the folder that a training wrote")
    if not (directory / "tokenizer_config.json").exists():
        raise UserError(
            f"{directory} has no tokenizer (tokenizer.json, tokenizer_config.json); "
            "give the folder that a training wrote"
        )
    for name in _JSON_FILES:
        if (directory / name).exists():
            read_object(directory / name)
    try:
        with panics_as_user_errors(f"in {directory}"):
            tokenizer = AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
    except UserError:
        raise
    except Exception as error:  # the tokenizers library raises no specific error
        if not any(any(directory.glob(pattern)) for pattern in _VOCABULARIES):
            raise UserError(f"{directory / 'tokenizer.json'} is missing; use another checkpoint") from error
        reason = one_line(f"{type(error).__name__}: {error}")
        raise UserError(
            f"the tokenizer in {directory} cannot be read ({reason}); its files may be half-written: "
            "use another checkpoint"
        ) from error
    for name in ("is_local", "local_files_only"):  # of this call; they would be saved with the tokenizer
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer
