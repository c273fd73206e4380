# The packages of Debian 12 and Ubuntu 24.04 that each use needs, and their installation.
#
# Sourced by tests/run.sh and examples/quickstart.sh; the only list there is.
#   sherd_packages build run test     what is needed for these uses
#   sherd_missing_packages <uses>     those of them that are not installed
#   sherd_install_packages <uses>     installs these; needs root or sudo only when some are missing

sherd_packages() {
  local use
  for use in "$@"; do
    case $use in
      build) echo g++ make cmake ninja-build ccache pkg-config libgloo-dev libabsl-dev libdnnl-dev ;;
      run) echo openmpi-bin openssh-client bible-kjv ;;
      test) echo git libgtest-dev python3 clang clang-tidy clang-format valgrind iproute2 ;;
      # Not in every release: what needs them is skipped with a reason where they are absent.
      optional) echo python3-torch libclang-rt-dev ;;
      *) echo "sherd_packages: no list '$use'" >&2; return 2 ;;
    esac
  done | tr ' ' '\n'
}

sherd_missing_packages() {
  local package
  for package in $(sherd_packages "$@"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
  done
}

sherd_install_packages() {
  local missing as_root=''
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "this is neither Debian nor Ubuntu: please install the equivalents of $(sherd_packages "$@" | xargs)" >&2
    return 0
  fi
  missing=$(sherd_missing_packages "$@" | xargs)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    as_root=$(command -v sudo) || { echo "missing, and neither root nor sudo: $missing" >&2; return 1; }
  fi
  echo "installing: $missing"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || return 1
  local package known=''
  for package in $missing; do
    if apt-cache show "$package" >/dev/null 2>&1 || ! sherd_packages optional | grep -qx "$package"; then
      known="$known $package"
    else
      echo "this release has no $package"
    fi
  done
  [ -n "$known" ] || return 0
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $known >/dev/null
}
