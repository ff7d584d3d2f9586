"""Token ids of prompts with completions and of chats: labels, truncation and row counts."""

import json

import pytest
from datasets import Dataset

from given_tokenizers import gpt2
from jsonl import write_jsonl
from toy_labels import WORDS
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text.completions import ChatSpec, TokenRow, load_chats, shortened_row, tokenize_completions
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
CHAT = [
    {"role": "user", "content": "the film"},
    {"role": "assistant", "content": "was good"},
    {"role": "user", "content": "in rome"},
    {"role": "assistant", "content": "and oslo"},
]


@pytest.fixture(scope="module", params=["ours", "library"])
def tokenizer(request, tmp_path_factory):
    if request.param == "ours":
        made = train_tokenizer([" ".join(WORDS)] * 4, 400, purpose="causal")
    else:
        made = gpt2(tmp_path_factory.mktemp("gpt2"))
    made.chat_template = TEMPLATE
    return made


def tokenized(
    tokenizer, rows: list[dict], max_length: int = 99, report: RowReport | None = None
) -> list[dict]:
    report = report or RowReport(kept=len(rows))
    return list(tokenize_completions(Dataset.from_list(rows), tokenizer, max_length, report, "train"))


def learned(tokenizer, row: dict) -> str:
    """The text of the labels, special tokens included."""
    return tokenizer.decode([label for label in row["labels"] if label != -100])


def test_only_the_completion_has_labels(tokenizer):
    (row,) = tokenized(tokenizer, [{"prompt": "the film", "completion": " was good"}])
    prompt, whole = tokenizer("the film").input_ids, tokenizer("the film was good").input_ids
    assert row["input_ids"] == [*whole, tokenizer.eos_token_id]
    assert row["labels"] == [-100] * len(prompt) + row["input_ids"][len(prompt) :]
    assert (row["prompt_length"], row["length"]) == (len(prompt), len(whole) + 1)


def test_a_space_at_the_end_of_a_prompt_belongs_to_the_completion(tokenizer):
    rows = [{"prompt": "the film", "completion": " was"}, {"prompt": "the film ", "completion": "was"}]
    first, second = tokenized(tokenizer, rows)
    assert first["input_ids"] == second["input_ids"]
    assert learned(tokenizer, second).strip().startswith("was")


def test_answers_in_a_chat_have_labels_up_to_the_end_token(tokenizer):
    (row,) = tokenized(tokenizer, [{"messages": json.dumps(CHAT)}])
    end = tokenizer.eos_token
    assert learned(tokenizer, row).replace(" ", "") == f"wasgood{end}andoslo{end}"
    assert row["input_ids"][-1] == tokenizer.eos_token_id
    generation_prompt = tokenizer.apply_chat_template(CHAT[:3], add_generation_prompt=True, tokenize=False)
    before = tokenizer(generation_prompt, add_special_tokens=False).input_ids
    assert row["input_ids"][: len(before) - 1] == before[:-1]  # the last space joins the answer's first token


def test_messages_behind_the_last_answer_are_left_out(tokenizer):
    chats = [CHAT, [*CHAT, {"role": "user", "content": "and york"}]]
    first, second = tokenized(tokenizer, [{"messages": json.dumps(chat)} for chat in chats])
    assert first == second


def test_an_answer_without_end_gets_one(tokenizer):
    plain = TEMPLATE.replace("{{ eos_token }}", "")
    tokenizer.chat_template, before = plain, tokenizer.chat_template
    try:
        (row,) = tokenized(tokenizer, [{"messages": json.dumps(CHAT)}])
    finally:
        tokenizer.chat_template = before
    assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
    assert row["labels"].count(tokenizer.eos_token_id) == 1


def test_long_rows_lose_the_left_of_their_prompt(tokenizer):
    row = {"prompt": "the film was good and bad in rome", "completion": " was poor"}
    (whole,) = tokenized(tokenizer, [row])
    report = RowReport(kept=1)
    (cut,) = tokenized(tokenizer, [row], whole["length"] - 2, report)
    leading = len(tokenizer("").input_ids)
    expected = whole["input_ids"][:leading] + whole["input_ids"][leading + 2 :]
    assert cut["input_ids"] == expected
    assert learned(tokenizer, cut) == learned(tokenizer, whole)
    assert cut["labels"][cut["prompt_length"] - 1] == -100 != cut["labels"][cut["prompt_length"]]
    assert (report.kept, report.truncated, report.over_long) == (1, 1, 0)


def test_a_long_chat_keeps_the_first_token_that_its_template_writes(tokenizer):
    begin = tokenizer.bos_token_id
    tokenizer.chat_template, before = "{{ bos_token }}" + TEMPLATE, tokenizer.chat_template
    try:
        rows = [{"messages": json.dumps([{"role": "user", "content": "bad and good"}, CHAT[1]])}]
        (whole,) = tokenized(tokenizer, rows)
        (cut,) = tokenized(tokenizer, rows, whole["length"] - 3)
    finally:
        tokenizer.chat_template = before
    assert whole["input_ids"][0] == begin
    assert cut["input_ids"] == [begin, *whole["input_ids"][4:]]
    assert learned(tokenizer, cut) == learned(tokenizer, whole)


def test_a_row_whose_completion_is_too_long_is_left_out(tokenizer):
    rows = [{"prompt": "the", "completion": " film" * 9}, {"prompt": "the", "completion": " film"}]
    report = RowReport(kept=2)
    length = tokenized(tokenizer, rows[1:])[0]["length"]
    assert len(tokenized(tokenizer, rows, length, report)) == 1
    assert (report.kept, report.over_long) == (1, 1)
    with pytest.raises(UserError, match="none of 1 rows of train has a completion that fits max_length=2"):
        tokenized(tokenizer, rows[:1], 2)


def test_a_template_that_rewrites_the_chat_is_refused(tokenizer):
    before = tokenizer.chat_template
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    try:
        with pytest.raises(UserError, match="differently once message 2 follows"):
            tokenized(tokenizer, [{"messages": json.dumps(CHAT)}])
        tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(UserError, match=r"refuses a chat of train \(roles must alternate\)"):
            tokenized(tokenizer, [{"messages": json.dumps(CHAT)}])
    finally:
        tokenizer.chat_template = before


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_chats_are_read_from_tables(tmp_path, ending):
    chats = [CHAT, CHAT[:2]]
    if ending == "jsonl":
        file = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat} for chat in chats])
    elif ending == "parquet":
        file = tmp_path / "chats.parquet"
        Dataset.from_list([{"messages": chat} for chat in chats]).to_parquet(file)
    else:
        file = tmp_path / "chats.csv"
        Dataset.from_list([{"messages": json.dumps(chat)} for chat in chats]).to_csv(file)
    corpus = load_chats(ChatSpec(train_file=[str(file)]))
    assert [json.loads(row["messages"]) for row in corpus.splits["train"]] == chats


def test_rows_without_a_valid_chat_are_counted(tmp_path):
    rows = [CHAT, "no chat", [{"role": "user"}], CHAT[:1], None, [{"role": "assistant", "content": " "}]]
    file = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat} for chat in rows])
    report = load_chats(ChatSpec(train_file=[str(file)])).reports["train"]
    assert (report.kept, report.malformed, report.empty) == (1, 3, 2)


def test_a_field_that_is_missing_is_named(tmp_path):
    file = write_jsonl(tmp_path / "chats.jsonl", [{"turns": CHAT}])
    with pytest.raises(UserError, match=r"messages_field: .* has no field 'messages'; it has 'turns'"):
        load_chats(ChatSpec(train_file=[str(file)]))


def test_the_token_before_the_completion_stays():
    """Without it, nothing would predict the completion's first token."""
    row = TokenRow([5, 6, 7], [-100, 6, 7], 1)
    assert shortened_row(row, 2, []) is None
    assert shortened_row(row, 3, []) is not None
