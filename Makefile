# What a person types: `make demo` shows the main job, `make test` passes every test.
# Both install the Debian packages that they lack, or print the line that does.

CARGO  ?= cargo
PREFIX ?= /usr/local
DURATION ?= 1h
PAGECACHE ?=
RESULTS ?= fairness_results
PREEMPTIONS ?= 1

TARGET   := $(abspath $(or $(CARGO_TARGET_DIR),target))
PACKAGES := build-essential python3 redis-server fio stress
# The programs that the tests run.
TESTED    = busybox-static musl-tools valgrind sqlite3 openssl perl ruby nodejs git xz-utils imagemagick stress-ng nginx-light \
            postgresql default-jdk-headless chromium man-db systemd prometheus libpython$(PYTHON)-testsuite
PYTHON    = $(shell /usr/bin/python3 -c "import sys; print('%d.%d' % sys.version_info[:2])")

# The preload library and the agent are always built by themselves: they have no standard library, and cargo gives packages that are
# built together the same features, among them those that bring the standard library in.

VERSION  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# The end-to-end tests use what was just built.
export MEMFOLD_LIB := $(TARGET)/release/libmemfold.so
export MEMFOLD_BIN := $(TARGET)/release/memfold
export MEMFOLD_AGENT := $(TARGET)/release/memfold-agent

.PHONY: build libraries packed deb rpm test-packages test-services test-containers publishable demo test test-programs test-suites test-kernels test-unit test-deps benchmark analyze workflow torture sabotage models sanitize fuzz lint deps install uninstall clean cargo

# What makes handshakes for ordinary users, built with the agent.
HANDSHAKE := $(TARGET)/release/memfold-handshake

# With the preload library and the agent inside, so that the executable works alone, too.
build: libraries
	MEMFOLD_EMBED=$(MEMFOLD_LIB) MEMFOLD_EMBED_AGENT=$(MEMFOLD_AGENT) MEMFOLD_EMBED_HANDSHAKE=$(HANDSHAKE) $(CARGO) build --release --locked -p memfold

libraries: deps
	$(CARGO) build --release --locked -p memfold-preload
	$(CARGO) build --release --locked -p memfold-agent
	$(CARGO) build --release --locked -p memfold-client-c

demo: build
	$(MEMFOLD_BIN) demo

# The executable that `cargo test` builds anyway, without minutes of link-time optimisation.
test: export MEMFOLD_BIN := $(TARGET)/debug/memfold
# Of each executable of the several that run at a time.
test: export RUST_TEST_THREADS ?= $(shell nproc)
test: lint libraries test-deps
	scripts/run-tests --locked --workspace --exclude memfold-preload --exclude memfold-agent
	$(CARGO) test --locked -p memfold-pager --features inject --test inject --test unseen --test dictionary

# The big programs with four times as much to do, and those that not every machine lets run; then a hundred rounds of attaching and detaching for each program
# that is attached to. Half an hour and more.
test-programs: build test-deps
	SCALE=4 $(CARGO) test --locked -p memfold-e2e --test big_programs -- --include-ignored --nocapture
	ROUNDS=100 $(CARGO) test --locked -p memfold-e2e --test attach --test attach_moments --test attach_runtimes --test attach_servers --test attach_tier -- --test-threads 2

# Test-suites that nobody here wrote, plain and under the harshest folding; an hour and more.
test-suites: build
	scripts/suites --write docs/reliability.md

# Hours of what `make test` does for two minutes.
torture: build
	scripts/torture --duration $(DURATION)

# Whether the tests catch the bugs that are planted on purpose; a quarter of an hour.
sabotage: deps test-deps
	scripts/sabotage --write docs/reliability.md

# Who gains from the page cache and who pays: eight workloads, 17 GiB of test files, 25 minutes. For small machines:
# make workflow PAGECACHE='--scale 1/16', which takes 1 GiB and 4 minutes.
benchmark: build
	$(MEMFOLD_BIN) pagecache run $(PAGECACHE) --out $(RESULTS) all

analyze: build
	$(MEMFOLD_BIN) pagecache analyze $(RESULTS)

workflow: benchmark analyze

# More preemptions in each scenario than `make test` tries; takes far longer with each.
models: deps
	MEMFOLD_PREEMPTIONS=$(PREEMPTIONS) $(CARGO) test --locked -p memfold-models

# ThreadSanitizer and AddressSanitizer; minutes, nearly all of it for building.
sanitize: deps
	scripts/sanitize

# Every parser of foreign bytes under libFuzzer, each for DURATION.
fuzz: DURATION = 60s
fuzz: deps
	scripts/fuzz --duration $(DURATION)

# Other kernels under QEMU, with the pager's tests and the hard cases in each; a quarter of an hour and more.
test-kernels: build
	scripts/install-packages qemu-system-x86 busybox-static
	scripts/test-kernels --write docs/compatibility.md

# The daemon under the system's systemd, in a container, with its unit's confinement; a minute. As root.
test-unit: build
	scripts/test-unit

lint: deps
	$(CARGO) fmt --check
	scripts/check-ladder
	scripts/check-specification
	$(CARGO) clippy --locked --workspace --exclude memfold-preload --exclude memfold-agent --all-targets -- -D warnings
	$(CARGO) clippy --release --locked -p memfold-preload -- -D warnings
	$(CARGO) clippy --release --locked -p memfold-agent -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked --workspace --exclude memfold-preload --exclude memfold-agent --no-deps --document-private-items

deps: cargo
	scripts/install-packages $(PACKAGES)

test-deps: deps
	scripts/install-packages $(TESTED)

cargo:
	@command -v $(CARGO) >/dev/null || { \
	    echo "cargo is missing; https://rustup.rs installs it: curl -sSf https://sh.rustup.rs | sh -s -- -y" >&2; exit 1; }

# What is installed and packed, and how, is in scripts/install-files alone.
EXECUTABLE = $(MEMFOLD_BIN)
FILES = BIN=$(EXECUTABLE) LIB=$(MEMFOLD_LIB) AGENT=$(MEMFOLD_AGENT) HANDSHAKE=$(HANDSHAKE) CLIENT=$(TARGET)/release VERSION=$(VERSION)
MANIFEST = $(PREFIX)/lib/memfold/installed

install:
	@test -x $(MEMFOLD_BIN) && test -f $(MEMFOLD_LIB) || { echo "nothing to install yet: run make build first" >&2; exit 1; }
	$(FILES) DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) MANIFEST=$(MANIFEST) scripts/install-files

uninstall:
	@test -f $(DESTDIR)$(MANIFEST) || { echo "no memfold was installed below $(DESTDIR)$(PREFIX) by make install" >&2; exit 1; }
	sed 's|^|$(DESTDIR)|' $(DESTDIR)$(MANIFEST) | xargs -d '\n' rm -f
	-rmdir $(DESTDIR)$(PREFIX)/lib/memfold $(DESTDIR)$(PREFIX)/share/doc/memfold/docs $(DESTDIR)$(PREFIX)/share/doc/memfold/examples \
	    $(DESTDIR)$(PREFIX)/share/doc/memfold

# What the packages have: a small executable, beside its library. Rust's own linker, which it takes on x86-64, makes one function of those that are equal,
# writes relocations as bits (DT_RELR, glibc 2.36 and musl 1.2.4), and leaves out the tables for unwinding: it ends where it panics, with the place, but
# without a backtrace.
SMALL = -C link-arg=-Wl,-O2 -C link-arg=-Wl,--icf=all -C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,--no-eh-frame-hdr -C link-arg=-Wl,-T,$(CURDIR)/scripts/no-unwind.ld

packed: libraries
	MEMFOLD_EMBED=off MEMFOLD_EMBED_AGENT=off MEMFOLD_EMBED_HANDSHAKE=off $(CARGO) rustc --profile packed --locked -p memfold --bin memfold -- $(if $(filter x86_64,$(shell uname -m)),$(SMALL))

# The packages are in target/packages.
deb rpm test-packages test-services: EXECUTABLE = $(TARGET)/packed/memfold

deb: packed
	$(FILES) OUT=$(TARGET)/packages scripts/make-deb

# An RPM of the same files.
rpm: packed
	scripts/install-packages rpm
	$(FILES) OUT=$(TARGET)/packages scripts/make-rpm

# The packages in a root of their own: checked by lintian, installed, run, upgraded under a folded program, removed. As root; minutes.
test-packages: packed
	scripts/install-packages lintian mmdebstrap rpm cpio bash-completion zsh fish
	$(FILES) scripts/test-packages

# `memfold service` for services as Debian ships them, under the system's systemd in a container; two minutes. As root.
test-services: packed
	$(FILES) scripts/test-services

# The recipes for containers: an image of the package, built by buildah and run by podman, Docker and Compose. As root, after test-packages; minutes.
test-containers:
	scripts/install-packages buildah podman runc docker.io docker-compose iproute2 iptables python3-yaml python3-venv
	scripts/test-containers

# Whether every crate that is meant for crates.io could be published, all in one go; nothing is.
publishable: cargo
	$(CARGO) publish --workspace --dry-run --no-verify --allow-dirty \
	    $(patsubst crates/%/Cargo.toml,--exclude memfold-%,$(shell grep -l '^publish = false' crates/*/Cargo.toml))

clean:
	$(CARGO) clean
