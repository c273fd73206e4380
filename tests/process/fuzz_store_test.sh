#!/usr/bin/env bash
# Fuzzes the store's protocol with libFuzzer: fuzz_store_test.sh <repository> <folder of sherd/> <seconds>.
# Prints one line PASS, FAIL or SKIP. What is found is left in $SHERD_FUZZ_KEEP, if that is set.
set -u
root=$(readlink -f "${1:?usage: fuzz_store_test.sh <repository> <folder of sherd/> <seconds>}")
include=$2 seconds=$3
what="the store's protocol, $seconds s of libFuzzer"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1
# shellcheck source=tests/fuzz/fuzz_lib.sh
. tests/fuzz/fuzz_lib.sh

fuzz_needs_clang
sources=(tests/process/store_fuzz.cc runtime/comm/store.cc)
sources+=(runtime/comm/internal/{notice,store_session,store_wire}.cc)
fuzz_compile "${sources[@]}" -o "$work/fuzz"
fuzz_run "$work/fuzz" "$seconds" tests/process/store_corpus
