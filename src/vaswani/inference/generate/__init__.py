"""Continuing texts and answering chats."""
