"""What a command prints on standard error, without the progress lines, which start after five seconds."""

import re


def without_progress(errors: bytes | str) -> str:
    text = errors.decode() if isinstance(errors, bytes) else errors
    return re.sub(r"^vaswani: [\d,]+ .*after (?:[5-9]|\d\d+) s\n", "", text, flags=re.MULTILINE)
