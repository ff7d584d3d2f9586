"""Files that are written whole and read with checks: JSON, YAML, lines; and files of the Hub."""
