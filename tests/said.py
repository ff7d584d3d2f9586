"""What a command says on standard error, without lines of progress, which begin after five seconds."""

import re


def said(errors: bytes | str) -> str:
    text = errors.decode() if isinstance(errors, bytes) else errors
    return re.sub(r"^vaswani: [\d,]+ .*after (?:[5-9]|\d\d+) s\n", "", text, flags=re.MULTILINE)
