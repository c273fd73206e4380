#!/usr/bin/env bash
# Builds and runs consumer/ outside the tree, in one of the ways a project can use Sherd.
#
#   consume.sh installed|subdirectory|own_dependencies|shared <source> <build folder>
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
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release)
if command -v ccache > /dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
case $way in
  installed)
    step 'install' cmake --install "$build" --prefix "$here/prefix"
    options+=("-DCMAKE_PREFIX_PATH=$here/prefix")
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
    ;;
  subdirectory) options+=("-DSHERD_SOURCE=$source") ;;
  own_dependencies) options+=("-DSHERD_SOURCE=$source" -DOWN_DEPENDENCIES=ON) ;;
  *) echo "FAIL consume.sh: unknown way $way"; exit 1 ;;
esac
step 'configure the consumer' cmake -S "$here/consumer" -B "$here/build" "${options[@]}"
step 'build the consumer' cmake --build "$here/build" --target consumer
step 'run the consumer' "$here/build/consumer"
if [ "$way" = installed ]; then
  step 'no internal header is installed' sh -c "! find '$here/prefix/include' -path '*internal*' | grep ."
  step 'the package files name no build folder' sh -c "! grep -rF '$build' '$here/prefix/lib/cmake'"
fi
