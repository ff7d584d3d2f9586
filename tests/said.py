"""What a command says on standard error, without lines of progress, which a slow machine adds."""

import re


def said(errors: bytes | str) -> str:
    text = errors.decode() if isinstance(errors, bytes) else errors
    return re.sub(r"^vaswani: [\d,]+ .*after \d+ s\n", "", text, flags=re.MULTILINE)
