# Every target makes what it needs: a virtual environment in .venv with the versions of constraints.txt.
#   make quickstart   train a date translator, evaluate it and use it (no downloads but packages)
#   make test         run the tests
#   make test-all     run them with the long repetitions that `make test` leaves out: before a release
#   make test-fast    run one case of each quick test, in two minutes: while you work
#   make test-oldest  the core tests with the oldest versions, those of constraints-oldest.txt, in .venv-oldest
#   make test-newest  the core tests with the newest supported transformers, in .venv-newest
#   make check        format, lint and type checks
#   make bench        the speed comparisons of benchmarks/
#   make docs         the documentation as a site, in site/: open site/index.html
#   make dist         the wheel and the source distribution, in dist/
#   make notebooks    run the notebooks of the course and save their outputs
#   make model-card   model_card.md, the card of what `make quickstart` trained
# On a machine without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu avoids PyTorch's CUDA packages.

PYTHON ?= python3
TORCH_INDEX ?=
RUN := runs/dates
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test test-all test-fast test-oldest test-newest check bench docs dist notebooks model-card clean

quickstart: .venv/installed
	@echo "== Training a Transformer that writes dates of many languages as ISO 8601 ($(RUN)) =="
	$(BIN)/vaswani train --config dates --output_dir $(RUN) \
	  $$(test -d $(RUN) && echo --resume_from_checkpoint true)
	@echo "== Its quality on days that it has never seen =="
	$(BIN)/vaswani evaluate --model $(RUN) --data dates
	@echo "== Using it =="
	printf '%s\n' '27. Januar 1999' 'March 3, 2024' '8 juillet 1977' '2031年12月9日' \
	  | $(BIN)/vaswani translate --model $(RUN)

test: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --all

test-fast: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --fast

# With OLDEST_TESTS, only these. VASWANI_OTHER_PYTHON: the other end, which must compute the same from a pushed model.
OLDEST := .venv-oldest/bin
OLDEST_TESTS ?= tests/model tests/hub tests/training/test_trainer.py tests/training/test_checkpoints.py \
  tests/test_private_names.py
test-oldest: .venv-oldest/installed .venv/installed
	OMP_NUM_THREADS=1 VASWANI_OTHER_PYTHON=$(BIN)/python $(OLDEST)/python -m pytest -n 2 $(OLDEST_TESTS)

# The newest transformers in front of the other packages of .venv. Models open with either version's code.
NEWEST := .venv-newest/bin
NEWEST_TESTS ?= $(OLDEST_TESTS) tests/kernels tests/interop tests/inference
test-newest: .venv-newest/installed
	OMP_NUM_THREADS=1 VASWANI_OTHER_PYTHON=$(BIN)/python $(NEWEST)/python -m pytest -n 2 $(NEWEST_TESTS)
	OMP_NUM_THREADS=1 VASWANI_OTHER_PYTHON=$(NEWEST)/python $(BIN)/python -m pytest tests/hub/test_versions.py

check: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/installed-dev
	$(BIN)/python benchmarks/training_speed.py
	$(BIN)/python benchmarks/decoding_speed.py
	$(BIN)/python benchmarks/sparse_attention.py

docs: .venv/installed-dev
	$(BIN)/python docs/build_site.py

dist: .venv/installed-dev
	$(BIN)/python -m hatchling build -d dist -t sdist -t wheel

notebooks: .venv/installed-dev
	$(BIN)/python tests/execute_notebooks.py

model-card: quickstart
	cp $(RUN)/config.json $(RUN)/training_config.yaml $(RUN)/corpus.json $(RUN)/evaluation.json docs/dates_run/
	$(BIN)/vaswani card --model docs/dates_run --repo vaswani/dates > model_card.md

.venv/created:
	@echo "== Creating a virtual environment in .venv =="
	$(PYTHON) -m venv .venv || (echo "python3 -m venv failed; on Debian: apt install python3-venv" && exit 1)
	touch $@

.venv/torch: .venv/created constraints.txt
	@echo "== Installing PyTorch =="
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	touch $@

.venv/installed: .venv/torch pyproject.toml
	@echo "== Installing vaswani =="
	$(PIP) --editable .
	touch $@

.venv/installed-dev: .venv/installed tests/transformers_suite/fetch.py
	@echo "== Installing what the tests need, transformers' own model tests among them =="
	$(PIP) --editable ".[dev]"
	$(BIN)/python tests/transformers_suite/fetch.py
	touch $@

.venv-oldest/installed: constraints-oldest.txt pyproject.toml
	@echo "== Installing the oldest supported versions in .venv-oldest =="
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(OLDEST)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
	  --editable . hypothesis matplotlib parameterized pytest pytest-xdist rouge-score sacremoses sentencepiece
	touch $@

SITE_PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
.venv-newest/installed: .venv/installed-dev
	@echo "== Installing the newest supported transformers in .venv-newest =="
	$(BIN)/python -m venv .venv-newest
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE_PACKAGES))')" \
	  > $$($(NEWEST)/python $(SITE_PACKAGES))/venv.pth
	$(NEWEST)/python -m pip install --quiet --disable-pip-version-check --no-deps 'transformers==5.24.*'
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest build dist runs site
