#!/usr/bin/env bash
# Fuzzes with libFuzzer: run.sh TARGET|all [arguments of libFuzzer, such as -runs=20000 or -max_total_time=60]
# Builds with the stable toolchain, and passes the coverage options to LLVM. After a crash, prints the path of the input and
# exits with 1. BUG=StaleWord plants a bug of Swordbox, to check that the target finds it. ASAN=1 adds AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")"

target=${1:?usage: run.sh TARGET|all [arguments of libFuzzer]}
shift
mapfile -t targets < <(sed -n 's|^    ("\(.*\)", .*::run),|\1|p' src/lib.rs)
if [ "$target" != all ]; then
    targets=("$target")
fi

for name in "${targets[@]}"; do
    if [ ! -d "corpus/$name" ]; then
        cargo run --quiet --locked -- "$name" "corpus/$name"
    fi
done

# A target triple, so that build scripts and macros are not instrumented.
triple=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=$PWD/libfuzzer/target
export RUSTFLAGS="-C target-cpu=x86-64-v3 -C target-feature=+pclmulqdq --cfg fuzzing -C passes=sancov-module \
-C llvm-args=-sanitizer-coverage-level=4 -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
-C llvm-args=-sanitizer-coverage-pc-table -C llvm-args=-sanitizer-coverage-trace-compares"
if [ -n "${ASAN:-}" ]; then
    # The sanitizer's flag is unstable; RUSTC_BOOTSTRAP lets the stable compiler accept it.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="$RUSTFLAGS -Zsanitizer=address" CARGO_TARGET_DIR=$PWD/libfuzzer/target/asan
fi
cargo build --quiet --locked --release --target "$triple" --manifest-path libfuzzer/Cargo.toml

for name in "${targets[@]}"; do
    echo "fuzzing $name"
    log=$(mktemp)
    if ! TARGET=$name "$CARGO_TARGET_DIR/$triple/release/fuzz" "corpus/$name" -artifact_prefix=libfuzzer/target/ \
        -print_final_stats=1 -verbosity=0 -max_len=9216 "$@" >"$log" 2>&1; then
        cat "$log"
        exit 1
    fi
    grep -E 'number_of_executed_units|average_exec_per_sec: *[1-9]' "$log"
    rm "$log"
done
