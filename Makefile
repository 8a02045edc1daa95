# The commands of this repository. Each one says what it does and, when something is missing, what brings it.

.PHONY: help run test test-long fuzz bench fmt lint clean

help:
	@echo 'make run        build Annals and start it with sample data (ARGS="--listen 127.0.0.1:9000" adds options)'
	@echo 'make test       set up what the tests need under target/tools, then run all of them'
	@echo 'make test-long  the same tests with the full counts of the fault tests'
	@echo 'make fuzz       fuzz the parsers (ARGS="segment" for one of them, ANNALS_FUZZ_SECONDS=600 for longer)'
	@echo 'make bench      measure the log beside the bare disk, about 3 minutes on a quiet machine (docs/performance.md)'
	@echo 'make fmt        format the code'
	@echo 'make lint       formatting, clippy, docs, licences, shell scripts'
	@echo 'make clean      remove target/ (data directories are left alone)'

run:
	@scripts/run.sh $(ARGS)

test:
	@scripts/test.sh

test-long:
	@ANNALS_TEST_LONG=1 scripts/test.sh

fuzz:
	@scripts/fuzz.sh $(ARGS)

bench:
	@cargo bench --locked --bench log -- append
	@cargo bench --locked --bench log -- recovery --one-segment

fmt:
	@cargo fmt

lint:
	@scripts/lint.sh

clean:
	@cargo clean
