#!/usr/bin/env bash
# Builds the program with profile-guided optimisation: builds it with counters, runs benchmarks with it, and builds it again with
# what was counted. Prints the path of the result.
#   pgo.sh BUILD_FOLDER     `make pgo`; some 15 minutes on two CPUs
#   pgo.sh --tool           prints the path of llvm-profdata, which this needs
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')

# The tool has to be of the compiler's version of LLVM.
profdata=
for tool in "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" "llvm-profdata-$llvm" llvm-profdata; do
    if "$tool" merge --version 2>/dev/null | grep -q "LLVM version $llvm\."; then
        profdata=$tool
        break
    fi
done
if [ -z "$profdata" ]; then
    echo "There is no llvm-profdata of LLVM $llvm, which this compiler needs. Run" >&2
    echo "  rustup component add llvm-tools" >&2
    ! apt-cache show "llvm-$llvm" > /dev/null 2>&1 || echo "  apt-get install llvm-$llvm" >&2
    exit 1
fi
if [ "${1:?build folder}" = --tool ]; then
    echo "$profdata"
    exit
fi
if [ -n "${RUSTFLAGS:-}${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
    echo "RUSTFLAGS and CARGO_ENCODED_RUSTFLAGS would replace the flags of this build: unset them" >&2
    exit 1
fi
built=$(mkdir -p "$1" && cd "$1" && pwd)

# Builds the program in a folder with this flag of the compiler, beside those of .cargo/config.toml. With --target, it is not
# one of build scripts and procedural macros.
build() {
    CARGO_TARGET_DIR=$1 "${CARGO:-cargo}" build --release --locked --bin understudy --target "$host" \
        --config "target.$host.rustflags = [\"$2\"]" >&2
}

counting=$built/pgo/counting
build "$counting" "-Cprofile-generate=$built/pgo/profiles"
program=$counting/$host/release/understudy
# Names the profile after the program, because cargo does not notice a profile that has changed.
profile=$built/pgo/$(sha256sum < "$program" | cut -c 1-16).profdata
if [ ! -e "$profile" ]; then
    rm -rf "$built"/pgo/{profiles,optimised,*.profdata}
    for load in workers onepipe health; do
        echo "Counting: understudy bench $load" >&2
        "$program" bench "$load" --rounds 1 --seconds 1 >&2
    done
    "$profdata" merge -o "$profile.new" "$built/pgo/profiles"
    mv "$profile.new" "$profile"
fi
build "$built/pgo/optimised" "-Cprofile-use=$profile"
echo "$built/pgo/optimised/$host/release/understudy"
