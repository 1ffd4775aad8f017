.DEFAULT_GOAL := help
.PHONY: help install lint format test slow cuda sanitize docs bench record bars peers attention dist wheels ci clean

help:     ## show this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install:  ## editable install with everything a developer needs
	pip install -e ".[dev]"

lint:     ## lints, format and types, as CI runs them
	pre-commit run --all-files

format:   ## let ruff rewrite what it can
	ruff check --fix . && ruff format .

test:     ## the tests
	pytest

slow:     ## the tests that take minutes
	pytest -m slow

cuda:     ## the CUDA kernels without a GPU
	pytest -m "cuda_offline and not slow"

sanitize: ## the core's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	bash .ci/sanitize

docs:     ## the documentation site, in build/site
	sphinx-build -W --keep-going docs build/site

bench:    ## do the benchmark suites run?
	cd benchmarks && asv check --python=same && asv run --python=same --quick --dry-run --show-stderr

record:   ## build and measure the last commit, keep the result in benchmarks/results
	cd benchmarks && asv machine --yes --machine ci-2core && asv run --machine ci-2core 'HEAD^!'

bars:     ## measure the allocator's bars
	python benchmarks/bars.py

peers:    ## measure the allocator against vLLM's, where that is installed
	python benchmarks/peers/allocator.py

attention: ## measure attention against other libraries, those that are installed
	python benchmarks/peers/attention.py --bars

dist:     ## build sdist and wheel, and look into them
	python -m build && python .ci/check_dist.py dist

wheels:   ## build and try a wheel for each Python of this machine
	bash .ci/wheels

ci:       ## everything, from a fresh environment
	bash .ci/run

clean:    ## remove what builds leave
	rm -rf build dist *.egg-info .asv
	find pagedcache backends -name '*.so' -delete
