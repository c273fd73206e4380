#!/usr/bin/env bash
# Fuzzes the store's protocol with libFuzzer: fuzz_store_test.sh <repository> <folder of sherd/> <seconds>.
# Prints one line PASS, FAIL or SKIP. What is found is left in $SHERD_FUZZ_KEEP, if that is set.
set -u
root=$(readlink -f "${1:?usage: fuzz_store_test.sh <repository> <folder of sherd/> <seconds>}")
include=$2 seconds=$3
what="the store's protocol, $seconds s of libFuzzer"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

clang=$(command -v clang++ || command -v clang++-14) || { echo "SKIP $what: clang++ is not installed"; exit 0; }
sanitizers=-fsanitize=fuzzer,address,undefined
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, decltype(sizeof(0))) { return 0; }' > "$work/probe.cc"
if ! "$clang" "$sanitizers" "$work/probe.cc" -o "$work/probe" > "$work/log" 2>&1; then
  echo "SKIP $what: clang++ has no fuzzer here (libclang-rt-dev)"
  exit 0
fi

sources=(tests/process/store_fuzz.cc runtime/comm/store.cc)
sources+=(runtime/comm/internal/{notice,store_session,store_wire}.cc)
cd "$root" || exit 1
# shellcheck disable=SC2046
if ! "$clang" -std=c++20 -O1 -g "$sanitizers" -fno-sanitize-recover=all -I "$root" -I "$include" "${sources[@]}" \
  $(pkg-config --cflags --libs absl_status absl_statusor absl_strings absl_time) -o "$work/fuzz" > "$work/log" 2>&1; then
  cat "$work/log"
  echo "FAIL $what: it does not compile"
  exit 1
fi

mkdir "$work/found" "$work/corpus"
# One input may take 10 s and 1 GiB: a short one that costs more is a finding too.
if "$work/fuzz" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
  -artifact_prefix="$work/found/" "$work/corpus" tests/process/store_corpus > "$work/log" 2>&1; then
  grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$work/log"
  grep -E '^#[0-9]+[[:space:]]+DONE' "$work/log"
  echo "PASS $what"
else
  tail -n 60 "$work/log"
  for file in "$work"/found/*; do [ -e "$file" ] && od -A d -c "$file" | head -20; done
  [ -z "${SHERD_FUZZ_KEEP:-}" ] || cp "$work"/found/* "$SHERD_FUZZ_KEEP"
  echo "FAIL $what: see above"
  exit 1
fi
