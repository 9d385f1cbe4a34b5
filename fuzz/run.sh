#!/bin/sh
# Fuzzes every target, or those named, for FUZZ_SECONDS each (60 unless set). Needs nightly Rust and cargo-fuzz.
# usage: fuzz/run.sh [TARGET...]
set -eu
cd "$(dirname "$0")"
# GCC moves zstd's constant tables from the stack to read-only data and still marks them dead at the end of their
# scope, which AddressSanitizer then reports; every other check of the C code stays on.
export CFLAGS="${CFLAGS:-} -fno-sanitize-address-use-after-scope"
[ $# -gt 0 ] || set -- stream_reader nvlist token decompress zap sa
for target; do
    mkdir -p "corpus/$target"
    [ ! -d "seeds/$target" ] || cp "seeds/$target"/* "corpus/$target/"
    cargo +nightly fuzz run "$target" -- -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=1024 -timeout=10
done
