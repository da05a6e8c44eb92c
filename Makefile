# corefit: what a person types. Everything is built below target/ and build/.

all: build

# Installs missing packages (as root on Debian), builds the command, the preload library and the workloads.
build: deps workloads
	cargo build --release --locked

workloads:
	@$(MAKE) --no-print-directory -C workloads

deps:
	@scripts/install-deps

# The main job on this machine: before and after, in less than three minutes.
demo: build
	@target/release/corefit bench overcommit --quick --no-apps --svg build/demo.svg

# All tests. With them in one build each library is built once: they need more of some. What waits runs beside what computes.
test: deps workloads vms
	cargo build --workspace --lib --bins --tests --examples --release --locked
	scripts/tests --release --locked

# Formatting, lints, documentation; with what was built for tests.
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --release --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --release --locked --quiet

# The measurement behind the picture and the first table of docs/measured.md, where the other numbers have their commands beside them; some
# hours on 2 CPUs, on a quiet machine.
bench: build
	scripts/install-apps
	target/release/corefit bench overcommit --svg docs/overcommit.svg | tee build/overcommit.txt

# The model against the kernel: busy loops in control groups, most of a minute on a quiet machine.
differential:
	cargo test -p corefit-linux --release --locked --test kernel_shares -- --ignored --nocapture differential

# Figures of P2 and P3 without controllers, which `make test` leaves out for their time: four minutes.
reproduce:
	cargo test -p corefit --release --locked --test reproduce -- --ignored

# What real VMs are predicted to get against what they get: 34 minutes on a quiet machine.
vm-shares: vms
	cargo test -p corefit-linux --release --locked --test libvirt_shares -- --ignored --nocapture

# What `corefit manage` and `corefit run` bring in an overcommitted VM, some 40 minutes for each of MANAGE_PROGRAMS (of MANAGE_PARTS
# `sizing`, `counted` (both with MANAGE_NUMBERS by hand, 1 to 8 without it) and `whole` (MANAGE_ROUNDS), MANAGE_SIZE, MANAGE_SECONDS
# for each number; MANAGE_LOG=1 prints the daemon's log); and what priorities bring two VMs (PRIORITY_SIZES). Each fails at its end where
# what is promised of 60 s is missed, as timed and at the same pace of the machine.
manage-vms: vms build
	COREFIT_VMS=required cargo test -p corefit --release --locked --no-fail-fast --test manage_vms --test priority_vms -- --ignored --nocapture measure

# QEMU, libvirt and a kernel for the tests with real VMs; they are skipped, and say so, where that fails (and nowhere else in .ci/run).
vms:
	@scripts/install-vms || echo "going on without test VMs"

# The threaded tests of SQLite, zstd and Python with the C library's locks and with ours; some minutes.
test-lock: build
	scripts/test-lock

# The systemd unit, started under a systemd of its own (systemd-nspawn); some seconds.
test-unit: build
	@scripts/test-unit || [ $$? -eq 77 ]

# The lock's algorithm under loom, shuttle and Miri, with seeded bugs; some minutes, most of them building.
prove-lock:
	scripts/loom
	scripts/shuttle
	@scripts/miri || [ $$? -eq 77 ]

# The readers of files under libFuzzer, a minute each after building for five.
fuzz:
	@scripts/fuzz || [ $$? -eq 77 ]

# The lock in a guest kernel, against Linux's, in QEMU; a quarter of an hour the first time, then five minutes.
test-kernel:
	@scripts/test-kernel --all || [ $$? -eq 77 ]

# Programs from the package registries, each run once.
test-apps: build
	scripts/install-apps
	workloads/apps/check

clean:
	rm -rf target build

.PHONY: all build deps workloads demo test lint bench differential reproduce vm-shares manage-vms vms test-apps test-unit test-lock prove-lock fuzz test-kernel clean
