#!/usr/bin/env bash
# Checks on a machine with a GPU.
#
#   tests/gpu.sh                   builds, makes the folder, and runs it here
#   tests/gpu.sh --pack FOLDER     builds and makes FOLDER and FOLDER.tar.xz, to be run elsewhere
#   tests/gpu.sh --no-install      lists packages that are missing and stops, instead of installing them
#
# FOLDER/run.sh needs a GPU with its driver, the CUDA runtime, cuBLAS and NCCL, a C library from 2.36 on,
# and nothing else; it takes at most 8 minutes and writes results/results.json and results/table.txt. The
# build is in build-cuda/ of the repository, or beside ${SHERD_BUILD_DIR} with that ending; for which
# devices says ${SHERD_CUDA_ARCHITECTURES}, 90 unless set.
set -u -o pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
cd "$root" || exit 1
# shellcheck source=runtime/cmake/packages.sh
. runtime/cmake/packages.sh

folder='' install=1
while [ $# -gt 0 ]; do
  case $1 in
    --pack) folder=${2:?--pack needs a folder}; shift ;;
    --no-install) install=0 ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' tests/gpu.sh; exit 0 ;;
    *) echo "gpu.sh: unknown option: $1" >&2; exit 2 ;;
  esac
  shift
done
build=${SHERD_BUILD_DIR:-$root/build}-cuda
pack=${folder:-$build/gpu}
if [ -e "$pack" ] && [ ! -x "$pack/run.sh" ]; then
  echo "gpu.sh: $pack exists and is no folder of this script; nothing was changed" >&2
  exit 1
fi
if [ $install = 1 ]; then
  sherd_install_packages build run test || { echo 'gpu.sh: the packages could not be installed' >&2; exit 1; }
else
  missing=$(sherd_missing_packages build run test | xargs)
  [ -z "$missing" ] || { echo "gpu.sh: missing packages: $missing" >&2; exit 1; }
fi

mkdir -p "$build" || exit 1
cmake -S "$root" -B "$build" -G Ninja -DSHERD_WITH_CUDA=ON -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
  -DCMAKE_CUDA_ARCHITECTURES="${SHERD_CUDA_ARCHITECTURES:-90}" -DSHERD_BUILD_TESTS=ON -DSHERD_BUILD_EXAMPLES=ON \
  -DSHERD_WARNINGS_AS_ERRORS=ON > "$build/configure.log" 2>&1 ||
  { cat "$build/configure.log" >&2; echo 'gpu.sh: cmake failed' >&2; exit 1; }
echo "== build in $build"
ninja -C "$build" -j "$(nproc)" sherd_gpu > "$build/build.log" 2>&1 ||
  { grep -v '^\[[0-9/]*\] \(Building\|Linking\)' "$build/build.log" | tail -n 100 >&2; echo 'gpu.sh: the build failed' >&2; exit 1; }

echo "== pack into $pack"
rm -rf "$pack" && mkdir -p "$pack/bin" "$pack/lib" || exit 1
cp tests/gpu/run.sh "$pack/run.sh" && chmod +x "$pack/run.sh" || exit 1
[ ! -f ../shared/peers/llama_torch.py ] || cp ../shared/peers/llama_torch.py "$pack/"
xargs -I{} cp {} "$pack/bin/" < "$build/gpu_programs.txt" || exit 1
# What the programs load, but for the C library and what comes with CUDA.
mapfile -t libraries < <(ldd "$pack"/bin/* | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u |
  grep -Ev '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv)|libcuda|libcudart|libcublas(Lt)?|libnccl|libnvidia[^/]*)\.so')
cp -L "${libraries[@]}" "$pack/lib/" || exit 1
strip --strip-unneeded "$pack"/bin/* "$pack"/lib/* 2> /dev/null
git rev-parse --short HEAD > "$pack/commit" 2> /dev/null
tar -C "$(dirname "$pack")" -cJf "$pack.tar.xz" "$(basename "$pack")" || exit 1
size=$(stat -c %s "$pack.tar.xz")
echo "== $pack.tar.xz: $((size >> 20)) MiB"
if [ "$size" -gt $((60 << 20)) ]; then
  echo "gpu.sh: the archive has $size bytes, more than 60 MiB" >&2
  exit 1
fi
[ -n "$folder" ] || exec "$pack/run.sh"
