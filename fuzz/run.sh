#!/usr/bin/env bash
# Fuzzes with libFuzzer: run.sh TARGET|all [libFuzzer's arguments, such as -runs=20000 or -max_total_time=60]
# Builds on the stable toolchain by asking LLVM for coverage directly. Ends with an error at a crash, and says where the
# input lies. FEATURES=canary BUG=StaleWord plants a bug of Swordbox, to see whether it is found. ASAN=1 adds
# AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")"

target=${1:?usage: run.sh TARGET|all [libFuzzer arguments]}
shift
mapfile -t targets < <(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)
if [ "$target" != all ]; then
    targets=("$target")
fi

# A target triple, so that build scripts and macros are not instrumented.
triple=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=$PWD/target
export RUSTFLAGS="-C target-cpu=x86-64-v3 -C target-feature=+pclmulqdq --cfg fuzzing -C passes=sancov-module \
-C llvm-args=-sanitizer-coverage-level=4 -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
-C llvm-args=-sanitizer-coverage-pc-table -C llvm-args=-sanitizer-coverage-trace-compares"
if [ -n "${ASAN:-}" ]; then
    # The sanitizer's flag is unstable; the stable compiler takes it like this.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="$RUSTFLAGS -Zsanitizer=address" CARGO_TARGET_DIR=$PWD/target/asan
fi
cargo build --quiet --locked --release --target "$triple" ${FEATURES:+--features "$FEATURES"}

for name in "${targets[@]}"; do
    corpus=corpus/$name
    if [ ! -d "$corpus" ]; then
        python3 seed.py "$name" "$corpus"
    fi
    echo "fuzzing $name"
    log=$(mktemp)
    if ! "$CARGO_TARGET_DIR/$triple/release/$name" "$corpus" -artifact_prefix=target/ -print_final_stats=1 -verbosity=0 \
        -max_len=9216 "$@" >"$log" 2>&1; then
        cat "$log"
        exit 1
    fi
    grep -E 'number_of_executed_units|average_exec_per_sec: *[1-9]' "$log"
    rm "$log"
done
