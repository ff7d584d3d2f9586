"""Chats: lists of messages with `role` and `content`, as a tokenizer's chat template writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError, one_line

USER, ASSISTANT = "user", "assistant"
Chat = list[dict[str, Any]]


def as_chat(cell: Any) -> Chat:
    """Return the messages of a cell, a list or JSON text, without null fields.

    The content of a message is a text, a list of parts of the form {"type": "text", "text": ...}, which are
    joined, or null beside `tool_calls`.

    Raises:
        UserError: the cell holds no chat; says what is wrong with which message.
    """
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            cell = None
    if not isinstance(cell, list):
        raise UserError("it is no list of messages with role and content")
    return [_message(message, number) for number, message in enumerate(cell, 1)]


def _message(message: Any, number: int) -> dict[str, Any]:
    """Return a message with its content as a text, or null."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise UserError(f"message {number} has no role: {str(message)[:60]}")
    content = message.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) and (content is not None or not message.get("tool_calls")):
        shown = json.dumps(content, ensure_ascii=False, default=str)[:60]
        raise UserError(f"the content of message {number} is {shown}; expected a text")
    kept = {name: value for name, value in message.items() if value is not None}
    return {**kept, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


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
