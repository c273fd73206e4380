# What fuzzing tests share: sourced, not run. Needs $root, the repository, $include, the folder of sherd/, $work, a
# folder of their own, and $what, what is said of the test.

# Finds clang++ with a fuzzer, or ends the test.
fuzz_needs_clang() {
  clang=$(command -v clang++ || command -v clang++-14) || { echo "SKIP $what: clang++ is not installed"; exit 0; }
  sanitizers=-fsanitize=fuzzer,address,undefined
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, decltype(sizeof(0))) { return 0; }' > "$work/probe.cc"
  if ! "$clang" "$sanitizers" "$work/probe.cc" -o "$work/probe" > "$work/log" 2>&1; then
    echo "SKIP $what: clang++ has no fuzzer here (libclang-rt-dev)"
    exit 0
  fi
}

# Sets `flags`, those of compiling and linking.
fuzz_flags() {
  flags=(-std=c++20 -O1 -g "$sanitizers" -fno-sanitize-recover=all -I "$root" -I "$include")
  # shellcheck disable=SC2207
  flags+=($(pkg-config --cflags absl_status absl_statusor absl_strings absl_str_format absl_time))
}

# fuzz_ended <status>: ends the test unless that is 0.
fuzz_ended() {
  [ "$1" -eq 0 ] && return
  cat "$work/log"
  echo "FAIL $what: it does not compile"
  exit 1
}

# fuzz_compile <arguments of clang++...>
fuzz_compile() {
  local flags
  fuzz_flags
  # shellcheck disable=SC2046
  "$clang" "${flags[@]}" "$@" \
    $(pkg-config --libs absl_status absl_statusor absl_strings absl_str_format absl_time) > "$work/log" 2>&1
  fuzz_ended $?
}

# fuzz_objects <flag> <folder> <sources...>: objects of the sources in the current folder, on all cores; a second run
# takes them from ccache.
fuzz_objects() {
  local flags first=("$1" "$2")
  fuzz_flags
  shift 2
  # shellcheck disable=SC2046
  printf '%s\0' "$@" | CCACHE_NOHASHDIR=1 xargs -0 -n 1 -P "$(nproc)" \
    $(command -v ccache) "$clang" "${flags[@]}" "${first[@]}" -c > "$work/log" 2>&1
  fuzz_ended $?
}

# fuzz_run <program> <seconds> <corpus>: prints PASS or FAIL; returns whether nothing was found.
# One input may take 10 s and 1 GiB: a short one that costs more is a finding too. What is found is left in
# $SHERD_FUZZ_KEEP, if that is set.
fuzz_run() {
  rm -rf "$work/found" "$work/corpus" && mkdir "$work/found" "$work/corpus"
  if "$1" -max_total_time="$2" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$work/found/" "$work/corpus" "$3" > "$work/log" 2>&1; then
    grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$work/log"
    grep -E '^#[0-9]+[[:space:]]+DONE' "$work/log"
    echo "PASS $what"
  else
    tail -n 60 "$work/log"
    for file in "$work"/found/*; do [ -e "$file" ] && od -A d -c "$file" | head -20; done
    [ -z "${SHERD_FUZZ_KEEP:-}" ] || cp "$work"/found/* "$SHERD_FUZZ_KEEP"
    echo "FAIL $what: see above"
    return 1
  fi
}
