#!/usr/bin/env bash
# Builds and runs the tests. The last line is "N passed, N failed"; the exit code is 0 if none failed.
#
#   tests/run.sh                 everything that a change must pass
#   tests/run.sh -L shard        the tests with one label (a folder of tests/, or tsan, asan)
#   tests/run.sh --full          the long forms as well: whole grids, clang-tidy on every file
#   tests/run.sh --no-install    list packages that are missing and stop, instead of installing them
#
# Everything here is built without CUDA; the CUDA code has a build of its own (label cuda_build), and a
# machine with a GPU tests/gpu.sh.
# Builds in build/, build-tsan/ and build-asan/ of the repository, or beside ${SHERD_BUILD_DIR} with these
# endings. Skipped tests are listed with their reasons and counted in neither number.
set -u -o pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
cd "$root" || exit 1
# shellcheck source=runtime/cmake/packages.sh
. runtime/cmake/packages.sh

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' tests/run.sh; }
label='' full=0 install=1
while [ $# -gt 0 ]; do
  case $1 in
    -L) label=${2:?-L needs a label}; shift ;;
    --full) full=1 ;;
    --no-install) install=0 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option: $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

uses='build run test optional'
if [ $install = 1 ]; then
  # shellcheck disable=SC2086
  sherd_install_packages $uses || { echo 'the packages could not be installed' >&2; exit 1; }
else
  # shellcheck disable=SC2086
  missing=$(sherd_missing_packages build run test | xargs)
  [ -z "$missing" ] || { echo "missing packages: $missing" >&2; exit 1; }
fi

python=/usr/bin/python3
[ -x $python ] || python=python3
build=${SHERD_BUILD_DIR:-$root/build}
jobs=$(nproc)
tally=$build/tally.tsv
mkdir -p "$build" && : > "$tally" || exit 1
[ $full = 0 ] || export SHERD_TEST_FULL=1
export CLICOLOR_FORCE=0 GTEST_COLOR=no

times=''
stage_begin() { stage=$1; started=$(date +%s); echo "== $stage"; }
stage_end() {
  local seconds=$(($(date +%s) - started))
  echo "== $stage: $seconds s"
  times="$times$(printf '%6d s  %s' "$seconds" "$stage")"$'\n'
}
# note <pass|fail|skip> <name> [reason]
note() { printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$stage" '' "$2" "${3:-}" >> "$tally"; }

# compile <folder> <targets> <cmake options...>: configures and builds, which counts as one test.
compile() {
  local folder=$1 targets=$2
  shift 2
  mkdir -p "$folder"
  if ! cmake -S "$root" -B "$folder" -G Ninja -DSHERD_WARNINGS_AS_ERRORS=ON -DSHERD_WITH_CUDA=OFF \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@" > "$folder/configure.log" 2>&1; then
    cat "$folder/configure.log"
    note fail "configure" 'cmake failed'
    return 1
  fi
  grep -E '^-- sherd|Warning' -A2 "$folder/configure.log" | grep -v '^--$'
  # shellcheck disable=SC2086
  if ninja -C "$folder" -k 0 -j "$jobs" $targets > "$folder/build.log" 2>&1; then
    note pass "build"
  else
    grep -v '^\[[0-9/]*\] \(Building\|Linking\)' "$folder/build.log" | tail -n 200
    note fail "build" 'see above'
  fi
}

# run_tests <folder> <ctest selection...>: runs what was selected and adds its cases to the tally.
run_tests() {
  local folder=$1
  shift
  rm -rf "$folder/test_results" "$folder/junit.xml" && mkdir -p "$folder/test_results"
  (cd "$folder" && ctest --show-only=json-v1 > tests.json && $without_aslr ctest -j "$jobs" \
    --output-on-failure --no-label-summary --test-output-size-passed 1048576 \
    --test-output-size-failed 1048576 --output-junit "$folder/junit.xml" "$@") | grep --line-buffered -v '^ *Start '
  "$python" tests/tally.py add "$stage" "$folder" "$tally"
}

# ThreadSanitizer of g++ 12 cannot map its shadow on kernels with 32 random bits of address.
without_aslr="setarch $(uname -m) -R"
$without_aslr true 2>/dev/null || without_aslr=''

sanitized() {  # sanitized <label> <value of SHERD_SANITIZE>
  stage_begin "$1"
  # -O1 compiles in half the time of -O2; lines of a report need no more than -g1.
  compile "$build-$1" "sherd_tests_$1" -DSHERD_SANITIZE="$2" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O1 -g1 -DNDEBUG' \
    -DSHERD_BUILD_EXAMPLES=OFF -DSHERD_WARNINGS_AS_ERRORS=OFF && run_tests "$build-$1" -L "^$1\$"
  stage_end
}

long='^full$'
[ $full = 0 ] || long='^$'
case $label in
  tsan) sanitized tsan thread ;;
  asan) sanitized asan address,undefined ;;
  '')
    stage_begin build
    compile "$build" "all sherd_bench" -DCMAKE_BUILD_TYPE=Release
    stage_end
    for part in lint tests install; do
      stage_begin $part
      if [ $part = tests ]; then
        run_tests "$build" -LE "^(lint|install)\$|$long"
      else
        run_tests "$build" -L "^$part\$" -LE "$long"
      fi
      stage_end
    done
    sanitized tsan thread
    sanitized asan address,undefined
    stage=labels
    "$python" tests/tally.py labels "$tally" "$full"
    ;;
  *)
    stage_begin "$label"
    compile "$build" "sherd_tests_$label" -DCMAKE_BUILD_TYPE=Release && run_tests "$build" -L "^$label\$" -LE "$long"
    stage_end
    ;;
esac

printf '\nTimes:\n%s' "$times"
exec "$python" tests/tally.py report "$tally"
