# One word for each thing that a person does here. `make needs` says what must be there first.
.POSIX:
.SUFFIXES:
.PHONY: run test test-slim test-clients test-model demo lint guest doubles needs needs-tests bench fuzz soak openapi \
	settings guest-lock api-fuzz live-e2b live-bedrock dist offline

# A shared build folder where CI or a person sets one; the clone's own else.
PROGRAM = "$${CARGO_TARGET_DIR:-target}/debug/interpreterd"
RELEASED = "$${CARGO_TARGET_DIR:-target}/release/interpreterd"
SEEN = "$${CARGO_TARGET_DIR:-$(CURDIR)/target}/api-seen.jsonl"

run: guest
	@sh scripts/run $(PROGRAM)

# The second line fails for a route, a status or a field of the API that no test has seen.
test: needs-tests doubles
	@rm -f $(SEEN)
	INTERPRETERD_TEST_SEEN=$(SEEN) cargo test --locked
	@python3 scripts/api-coverage $(SEEN)

# The program without AWS's client builds and works too: unit tests, and what a feature can break.
test-slim: guest
	cargo test --locked --no-default-features -- local:: contract:: openapi:: layers:: without_bedrock:: config:: sandbox:: telemetry::

# The vendors' own clients against the stub and the double that stand for their services.
test-clients: guest
	@sh scripts/test-clients

# A small real model asks and answers: by hand; some half a gigabyte is fetched the first time.
test-model: guest
	@bash scripts/test-model $(PROGRAM)

# Some thousand generated requests against the real sandbox.
api-fuzz: guest
	@bash scripts/api-fuzz $(PROGRAM)

demo: guest
	@python3 demo/ask.py --program $(PROGRAM)

lint:
	@sh scripts/lint

# Builds what `make test` builds, so that nothing is compiled twice.
guest: needs
	cargo build --locked --all-targets
	@$(PROGRAM) guest install

# What the doubles of outside systems in the tests need.
doubles: guest
	@sh scripts/doubles
	@$(PROGRAM) guest install --provider pydantic

needs:
	@sh scripts/needs

# What `make test` needs besides: Postgres.
needs-tests:
	@sh scripts/needs tests

# Release build, the rivals' own environment and half an hour of measuring: by hand, on an idle machine.
bench: doubles
	cargo build --release --locked
	@python3 benches/run.py --program $(RELEASED) --readme README.md

# Any bytes as a session's frames, for SECONDS (60). Wants nightly and cargo-fuzz.
fuzz:
	cargo +nightly fuzz run frames -- -max_total_time=$${SECONDS:-60} -max_len=65536

# Some thousand sessions that end in random ways: minutes, by hand. COUNT=2000
soak: guest
	INTERPRETERD_TEST_SESSIONS=$${COUNT:-2000} cargo test --locked --test it -- --nocapture leaks::

openapi:
	cargo run --locked -- openapi > openapi/interpreterd.json

settings:
	sh scripts/readme-settings

# The release build as an archive with its documents and units, and its SHA-256, in dist/.
dist:
	@sh scripts/dist

# The image and Docker Compose without a registry, tried whole: as root on Debian, by hand, half an hour.
offline:
	@bash deploy/offline/run

guest-lock:
	@sh scripts/guest-lock

# A dozen cheap calls to the real E2B: by hand, with E2B_API_KEY.
live-e2b: guest
	@python3 tests/live/smoke.py --provider e2b --program $(PROGRAM)

# The same against the real AWS, with AWS_REGION and credentials in one of AWS's usual ways.
live-bedrock: guest
	@python3 tests/live/smoke.py --provider bedrock --program $(PROGRAM)
