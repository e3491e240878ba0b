# Everything a newcomer types. Each target sets up what it needs, and does nothing twice.
PYTHON ?= python3
VENV := .venv/bin
HOST ?= 127.0.0.1
PORT ?= 8000
ENGINE_V1 ?= 1
ARGS ?=

# Tests run models in several processes at once; OpenMP threads that spin long starve one another.
PYTEST := GOMP_SPINCOUNT=4000 $(VENV)/python -m pytest -q

.PHONY: setup setup-dev serve test test-gpu lint bench-smoke clean

setup:
	@$(PYTHON) scripts/setup_env.py

setup-dev:
	@$(PYTHON) scripts/setup_env.py --dev

serve: setup  ## serve the default model; ARGS="--model DIR" for another
	@ENGINE_V1=$(ENGINE_V1) $(VENV)/python -m engine.serve --host $(HOST) --port $(PORT) $(ARGS)

test: setup-dev lint  ## everything CI runs
	@$(PYTEST) $(ARGS)

test-gpu: setup-dev  ## needs an NVIDIA device
	@$(PYTEST) -m "gpu" $(ARGS)

lint: setup-dev
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

bench-smoke: setup  ## both engines, 8 concurrent chats, in a minute
	@$(VENV)/python -m benchmarks.smoke $(ARGS)

clean:
	rm -rf .venv build
