"""Scripts without spaces between words, for character classes in patterns of `regex` and tokenizers."""

HAN = r"\p{Han}"
KANA = r"\p{Hiragana}\p{Katakana}"
SOUTHEAST = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
