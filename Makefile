# What a person types: `make demo` shows the main job, `make test` passes every test.
# Both install the Debian packages that they lack, or print the line that does.

CARGO  ?= cargo
PREFIX ?= /usr/local
DURATION ?= 1h

TARGET   := $(abspath $(or $(CARGO_TARGET_DIR),target))
PACKAGES := build-essential python3 redis-server sqlite3 perl ruby nodejs git xz-utils imagemagick stress-ng nginx-light

# The preload library is always built by itself: it has no standard library, and cargo gives packages that are
# built together the same features, among them those that bring the standard library in.

# The end-to-end tests use what was just built.
export MEMFOLD_LIB := $(TARGET)/release/libmemfold.so
export MEMFOLD_BIN := $(TARGET)/release/memfold

.PHONY: build demo test test-kernels torture sabotage lint deps install uninstall clean cargo

build: deps
	$(CARGO) build --release --locked -p memfold
	$(CARGO) build --release --locked -p memfold-preload

demo: build
	$(MEMFOLD_BIN) demo

test: lint build
	$(CARGO) test --locked --workspace --exclude memfold-preload
	$(CARGO) test --locked -p memfold-pager --features inject --test inject

# Hours of what `make test` does for two minutes.
torture: build
	scripts/torture --duration $(DURATION)

# Whether the tests catch the bugs that are planted on purpose; a quarter of an hour.
sabotage: deps
	scripts/sabotage --write docs/reliability.md

# Other kernels under QEMU, with the pager's tests and the hard cases in each; a quarter of an hour and more.
test-kernels: build
	scripts/install-packages qemu-system-x86 busybox-static
	scripts/test-kernels --write docs/compatibility.md

lint: deps
	$(CARGO) fmt --check
	scripts/check-ladder
	$(CARGO) clippy --locked --workspace --exclude memfold-preload --all-targets -- -D warnings
	$(CARGO) clippy --locked -p memfold-preload -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked --workspace --exclude memfold-preload --no-deps --document-private-items

deps: cargo
	scripts/install-packages $(PACKAGES)

cargo:
	@command -v $(CARGO) >/dev/null || { \
	    echo "cargo is missing; https://rustup.rs installs it: curl -sSf https://sh.rustup.rs | sh -s -- -y" >&2; exit 1; }

install:
	@test -x $(MEMFOLD_BIN) && test -f $(MEMFOLD_LIB) || { echo "nothing to install yet: run make build first" >&2; exit 1; }
	install -D -m 755 $(MEMFOLD_BIN) $(DESTDIR)$(PREFIX)/bin/memfold
	install -D -m 644 $(MEMFOLD_LIB) $(DESTDIR)$(PREFIX)/lib/memfold/libmemfold.so

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/memfold $(DESTDIR)$(PREFIX)/lib/memfold/libmemfold.so
	-rmdir $(DESTDIR)$(PREFIX)/lib/memfold

clean:
	$(CARGO) clean
