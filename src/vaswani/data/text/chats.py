"""Chats: lists of messages with `role` and `content`, as a tokenizer's chat template writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError, one_line

ASSISTANT = "assistant"
Chat = list[dict[str, Any]]


def as_chat(cell: Any) -> Chat | None:
    """Return the messages of a cell, a list or JSON text, without null fields; None if it holds no chat."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return None
    if not isinstance(cell, list) or not all(isinstance(message, dict) for message in cell):
        return None
    if not all(isinstance(message.get(name), str) for message in cell for name in ("role", "content")):
        return None
    return [{name: value for name, value in message.items() if value is not None} for message in cell]


def rendered_chat(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, where: str, *, add_generation_prompt: bool = False
) -> str:
    """Return a chat as the text that the tokenizer's template writes.

    Args:
        tokenizer: has a chat template.
        chat: the messages.
        where: names the chat in messages, such as "a chat of train".
        add_generation_prompt: end with the beginning of an answer.

    Raises:
        UserError: the template refuses the chat.
    """
    try:
        rendered: Any = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return rendered
    except Exception as error:  # templates can raise any error, and so can jinja2
        raise UserError(
            f"the chat template refuses {where} ({one_line(error)}): "
            f"{json.dumps(chat, ensure_ascii=False)[:100]}"
        ) from error


def template_token_ids(codec: TextCodec, rendered: Sequence[str]) -> list[list[int]]:
    """Encode texts that a template wrote: parse their special tokens and add no others."""
    return codec.token_ids(rendered, add_special_tokens=False, split_special_tokens=False)
