#!/bin/sh
# Fuzzes every target, or the named ones, for FUZZ_SECONDS each (default 60), FUZZ_JOBS at a time (default 1).
# Needs nightly Rust and cargo-fuzz. After a crash, its input is in fuzz/artifacts, the end of its log is printed, and
# the script fails.
# usage: fuzz/run.sh [TARGET...]
#        fuzz/run.sh --build        only compiles them
set -eu
cd "$(dirname "$0")"
# GCC moves zstd's constant tables from the stack to read-only data and still marks them dead at the end of their
# scope, which AddressSanitizer then reports; every other check of the C code stays on.
export CFLAGS="${CFLAGS:-} -fno-sanitize-address-use-after-scope"
export FUZZ_SECONDS="${FUZZ_SECONDS:-60}" FUZZ_LOGS="${CARGO_TARGET_DIR:-target}/fuzz-logs"
mkdir -p "$FUZZ_LOGS"
cargo +nightly fuzz build
[ "${1:-}" != --build ] || exit 0
[ $# -gt 0 ] || set -- $(cargo +nightly fuzz list)
for target; do
    mkdir -p "corpus/$target"
    [ ! -d "seeds/$target" ] || cp "seeds/$target"/* "corpus/$target/"
done
printf '%s\n' "$@" | xargs -P "${FUZZ_JOBS:-1}" -I {} sh -c '
    log=$FUZZ_LOGS/{}.log
    if cargo +nightly fuzz run {} -- -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 > "$log" 2>&1
    then echo "fuzz {}: $(sed -n "s/^stat::number_of_executed_units: *//p" "$log") runs in $FUZZ_SECONDS s"
    else tail -n 60 "$log"; echo "fuzz {}: FAILED"; exit 255
    fi'
