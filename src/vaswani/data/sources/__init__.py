"""Sources of rows: files, data sets and the built-in dates."""
