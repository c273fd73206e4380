#!/usr/bin/env bash
# The CUDA code builds with warnings as errors, the folder for a GPU machine is made and runs, and this
# build, which has no CUDA, links none of its libraries.
#   cuda_build_test.sh <build folder>
set -u -o pipefail
build=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
failed=0
pass() { echo "PASS $1"; }
fail() { echo "FAIL $1: $2"; failed=1; }

# [1] This build.
if grep -q '^SHERD_WITH_CUDA:.*=OFF' "$build/CMakeCache.txt"; then
  found=''
  while read -r program; do
    linked=$(ldd "$program" 2> /dev/null | grep -Eo 'lib(cuda|cudart|cublas|cublasLt|nccl)\.so[^ ]*' | xargs)
    [ -z "$linked" ] || found="$found $(basename "$program"): $linked;"
  done < <(find "$build/tests" "$build/examples" -type f -perm -u+x ! -name '*.so*' ! -name '*.sh' ! -name '*.py')
  if [ -z "$found" ]; then pass 'a build without CUDA links no CUDA library'; else fail 'a build without CUDA links no CUDA library' "$found"; fi
else
  echo 'SKIP a build without CUDA links no CUDA library: this build has CUDA'
fi

# [2] The build with CUDA and its folder.
if ! command -v nvcc > /dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo 'SKIP CUDA code builds: there is no nvcc on this machine'
  exit $failed
fi
folder=$build/gpu-folder
if SHERD_BUILD_DIR=$build "$root/tests/gpu.sh" --no-install --pack "$folder" > "$build/gpu.log" 2>&1; then
  pass 'all CUDA code builds with warnings as errors'
  pass "the folder is made: $(tail -n 1 "$build/gpu.log")"
else
  tail -n 60 "$build/gpu.log"
  fail 'all CUDA code builds with warnings as errors' 'see above'
  exit 1
fi

# [3] The folder, on whatever machine this is.
if "$folder/run.sh" > "$build/gpu-run.log" 2>&1; then
  pass "the folder runs: $(tail -n 1 "$build/gpu-run.log")"
else
  cat "$build/gpu-run.log"
  fail 'the folder runs' 'see above'
fi
cat "$build/gpu-run.log"
if /usr/bin/python3 -m json.tool "$folder/results/results.json" > /dev/null; then
  pass 'its results are JSON'
else
  fail 'its results are JSON' "$folder/results/results.json"
fi
exit $failed
