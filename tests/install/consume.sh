#!/usr/bin/env bash
# Builds and runs consumer/ outside the tree, in one of the ways a project can use Sherd.
#
#   consume.sh installed|subdirectory|own_dependencies|shared|versions <source> <build folder>
#
# Prints "PASS ..." or "FAIL ...: reason" per step, as sherd_script_test expects.
set -u -o pipefail
way=$1 source=$2 build=$3
here=$(mktemp -d) || exit 1
trap 'rm -rf "$here"' EXIT
export CCACHE_BASEDIR=$here CCACHE_NOHASHDIR=1  # one way finds what another compiled

step() {
  local what=$1
  shift
  "$@" > "$here/log" 2>&1
  local code=$?
  if [ $code = 0 ]; then
    echo "PASS $what"
  else
    tail -n 60 "$here/log"
    echo "FAIL $what: exit code $code"
    exit 1
  fi
}

cp -r "$source/tests/install/consumer" "$here/consumer" || exit 1
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DSHERD_WITH_CUDA=OFF)
cache=''
if command -v ccache > /dev/null; then cache=ccache && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi

# consume: configures, builds and runs both programs of the consumer.
consume() {
  step 'configure the consumer' cmake -S "$here/consumer" -B "$here/build" "${options[@]}"
  step 'build the consumer' cmake --build "$here/build" --target consumer engine
  step 'run the consumer' "$here/build/consumer"
  step 'run the engine alone' "$here/build/engine"
  ninja -C "$here/build" -t commands engine | tail -n 1 > "$here/link"
  step 'the engine links no oneDNN, JSON, MPI or tape' \
    sh -c "grep -q libsherd_engine '$here/link' && ! grep -E 'lib(dnnl|mpi|sherd_io|sherd_autograd|sherd_checkpoint)|json' '$here/link'"
}

# consume_with_pkg_config [--static]: a makefile's way, without CMake.
consume_with_pkg_config() {
  command -v pkg-config > /dev/null || { echo 'SKIP pkg-config: it is not installed'; return; }
  local program package folder
  folder=$(dirname "$(find "$here/prefix" -name sherd.pc)")
  export PKG_CONFIG_PATH=$folder LD_LIBRARY_PATH=${folder%/pkgconfig}
  for program in main engine; do
    package=sherd
    [ $program = main ] || package=sherd-engine
    # shellcheck disable=SC2046
    step "compile $program with pkg-config" $cache g++ -std=c++20 -O3 -DNDEBUG \
      $(pkg-config --cflags $package) -c "$here/consumer/$program.cc" -o "$here/$program.o"
    # shellcheck disable=SC2046
    step "link $program with pkg-config $*" g++ "$here/$program.o" -o "$here/$program" \
      $(pkg-config "$@" --libs $package)
    step "run $program" "$here/$program"
  done
  if command -v clang++ > /dev/null; then
    # shellcheck disable=SC2046
    step 'clang++ builds against it' clang++ -std=c++20 "$here/consumer/engine.cc" -o "$here/with_clang" \
      $(pkg-config "$@" --cflags --libs sherd-engine)
    step 'run what clang++ built' "$here/with_clang"
  else
    echo 'SKIP clang++ builds against it: it is not installed'
  fi
  step 'pkg-config gives the engine no oneDNN' sh -c "! pkg-config --static --libs sherd-engine | grep dnnl"
}

# consume_from_c: C and Python need the engine's library and the C header, and name nothing else.
consume_from_c() {
  local ranks
  export LD_LIBRARY_PATH=$here/prefix/lib
  step 'a C program links the engine alone' cc -std=c11 -Wall -Wextra -pedantic -Wno-missing-field-initializers \
    -Werror -I "$here/prefix/include" "$source/tests/interop/c_program.c" -o "$here/c_program" \
    -L "$here/prefix/lib" -lsherd_engine -pthread
  for ranks in 1 2 3; do
    "$here/c_program" $ranks
  done
  python3 "$source/tests/interop/c_ctypes_test.py" "$here/prefix/lib/libsherd_engine.so"
}

# Everything of a parent's is too old, and all of it is said at once.
refuse_versions() {
  mkdir -p "$here"/old/{absl/base,gloo,oneapi/dnnl} || exit 1
  echo '#define ABSL_LTS_RELEASE_VERSION 20210324' > "$here/old/absl/base/config.h"
  printf '#define GLOO_VERSION_%s\n' 'MAJOR 0' 'MINOR 4' 'PATCH 9' > "$here/old/gloo/config.h"
  printf '#define DNNL_VERSION_%s\n' 'MAJOR 1' 'MINOR 8' 'PATCH 0' > "$here/old/oneapi/dnnl/dnnl_version.h"
  cat > "$here/consumer/CMakeLists.txt" << EOF
cmake_minimum_required(VERSION 3.25)
project(old LANGUAGES CXX)
set(CMAKE_CXX_COMPILER_VERSION 11.2.0)
foreach(name absl::status absl::config gloo DNNL::dnnl)
  add_library(\${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(\${name} INTERFACE $here/old)
endforeach()
add_subdirectory($source sherd)
EOF
  if cmake -S "$here/consumer" -B "$here/build" "${options[@]}" > "$here/log" 2>&1; then
    echo 'FAIL old versions are refused: the configuration went through'
  fi
  tr -s ' \n' ' ' < "$here/log" > "$here/words"
  step 'four versions are errors' \
    test "$(grep -o 'CMake Error at [^ ]*SherdVersion.cmake' "$here/words" | wc -l)" = 4
  for said in 'g++ 12 or newer; this is 11.2.0' '(libabsl-dev) 20220623 or newer; this is 20210324' \
    '(libgloo-dev) 0.5.0 or newer; this is 0.4.9' '(libdnnl-dev) 2.6 or newer; this is 1.8.0'; do
    step "says: $said" grep -qF "$said" "$here/words"
  done
}

case $way in
  installed)
    step 'install' cmake --install "$build" --prefix "$here/prefix"
    options+=("-DCMAKE_PREFIX_PATH=$here/prefix")
    consume
    consume_with_pkg_config --static
    step 'no internal header is installed' sh -c "! find '$here/prefix/include' -path '*internal*' | grep ."
    step 'the package files name no build folder' \
      sh -c "! grep -rF '$build' '$here/prefix' --include='*.cmake' --include='*.pc'"
    ;;
  shared)
    # As part of the consumer, so that the objects are those of the other ways and ccache has them.
    step 'configure shared libraries' cmake -S "$here/consumer" -B "$here/build" "${options[@]}" \
      "-DSHERD_SOURCE=$source" -DBUILD_SHARED_LIBS=ON -DSHERD_INSTALL=ON
    step 'build shared libraries' cmake --build "$here/build"
    step 'run with shared libraries' "$here/build/consumer"
    step 'install shared libraries' cmake --install "$here/build" --prefix "$here/prefix"
    rm -rf "$here/build"
    options+=("-DCMAKE_PREFIX_PATH=$here/prefix")
    consume
    consume_with_pkg_config
    consume_from_c
    python3 "$source/tests/install/libraries.py" "$here/prefix"
    ;;
  subdirectory) options+=("-DSHERD_SOURCE=$source") && consume ;;
  own_dependencies) options+=("-DSHERD_SOURCE=$source" -DOWN_DEPENDENCIES=ON) && consume ;;
  versions) refuse_versions ;;
  *) echo "FAIL consume.sh: unknown way $way"; exit 1 ;;
esac
