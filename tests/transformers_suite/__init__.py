"""transformers' own model tests, run against this project's classes.

The source distribution of transformers carries the mixins that its own models are tested with. `fetch.py`
downloads the one of the installed version with pip and unpacks its tests into `.source/`, which git ignores:

    python tests/transformers_suite/fetch.py
    pytest tests/transformers_suite

- `upstream.py` imports the fetched mixins and stands in for what the distribution leaves out.
- `generation_checks.py` checks `generate`: transformers' own checks of it are not in the distribution.
- `harness.py` describes small models to the mixins, and turns a skip into a failure unless the peers, put
  through the same test with the same settings, skip it as well.
- `peers.py` puts MarianMT, BART, BERT and GPT-2 through the same harness.
- `test_vaswani.py` runs the suite on this project's models.
- `test_peers.py` runs on the peers what was written here: they pass, so it asks nothing unheard of.

Without the sources the tests skip and say so; where the environment variable `CI` is set, they fail.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.generation_checks", f"{__name__}.harness")
