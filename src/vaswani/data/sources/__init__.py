"""Where rows come from: files, data sets, the built-in dates."""
