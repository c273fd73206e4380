"""Looks at the shared libraries of an install tree: what they show, what they load and how large they are.

    libraries.py PREFIX

Prints a table, and "PASS name" or "FAIL name: reason" for each check.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

LAYERS = {"base", "core", "io", "interop", "comm", "cuda", "kernels", "matmul", "autograd", "checkpoint",
          "engine", "shard"}
LIMIT_BYTES = 10 * 1000 * 1000  # of all libraries together, stripped
# Public names of the namespace sherd begin with a capital letter; those of the C header with sherd_.
PUBLIC = re.compile(r"(sherd_\w+|((typeinfo|typeinfo name|vtable|VTT) for |(non-)?virtual thunk to |"
                    r"covariant return thunk to )?sherd::((kernels|cpu|status)::)?([A-Z]|operator).*)")
PRIVATE = re.compile(r"((typeinfo|typeinfo name|vtable) for )?sherd::((kernels::)?internal|cuda)::.*")
# What each target may not load: the engine is there for programs without a tape.
WITHOUT = {"engine": ("dnnl", "mpi", "json", "sherd_io", "sherd_autograd", "sherd_matmul", "cudart", "cublas", "nccl"),
           "comm": ("dnnl", "mpi", "json"), "kernels": ("dnnl", "mpi"), "base": ("gloo", "dnnl"),
           "core": ("gloo", "dnnl"), "autograd": ("gloo",), "checkpoint": ("gloo",)}


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def verdict(name, wrong):
    for line in wrong[:20]:
        print("  " + line)
    print("FAIL %s: %d" % (name, len(wrong)) if wrong else "PASS " + name, flush=True)
    return not wrong


class Library:
    def __init__(self, path, scratch):
        self.name = re.match(r"libsherd_(\w+)\.so", os.path.basename(path)).group(1)
        stripped = os.path.join(scratch, self.name)
        subprocess.run(["strip", "-o", stripped, path], check=True)
        self.bytes = os.path.getsize(stripped)
        dynamic = output("readelf", "-dW", path)
        self.soname = re.search(r"\(SONAME\).*\[(.*)\]", dynamic).group(1)
        self.needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        self.loaded = re.findall(r"^\s*(\S+) =>", output("ldd", path), re.MULTILINE)
        self.missing = re.findall(r"^\s*(\S+) => not found", output("ldd", path), re.MULTILINE)
        self.public, self.private, self.foreign = [], [], []
        for line in output("nm", "-D", "-C", "--with-symbol-versions", path).split("\n"):
            found = re.match(r"(?:[0-9a-f]{16}|\s{16}) (\w) (.*?)(?:@+(\w[\w.]*))?$", line)
            if found is None:
                continue
            kind, symbol, version = found.groups()
            if kind not in "UwA":  # not those it needs, nor the names of versions
                self._sort(symbol, version or "")

    def _sort(self, symbol, version):
        if version.endswith("_PRIVATE") and PRIVATE.fullmatch(symbol):
            self.private.append(symbol)
        elif re.fullmatch(r"SHERD_\d+\.\d+", version) and PUBLIC.fullmatch(symbol):
            self.public.append(symbol)
        else:
            self.foreign.append("%s: %s @%s" % (self.name, symbol, version))


def main():
    prefix = os.path.abspath(sys.argv[1])
    paths = [p for p in glob.glob(prefix + "/lib*/**/libsherd_*.so", recursive=True)]
    with tempfile.TemporaryDirectory() as scratch:
        libraries = sorted((Library(p, scratch) for p in paths), key=lambda x: x.name)
    print("%-12s %12s %8s %8s  %s" % ("library", "stripped", "public", "private", "loads"))
    for x in libraries:
        print("%-12s %12d %8d %8d  %s" % (x.name, x.bytes, len(x.public), len(x.private),
                                          " ".join(n for n in x.needed if not n.startswith("libabsl"))))
        print("%-12s ldd: %d libraries, %d of them Abseil's" % (
            "", len(x.loaded), sum(n.startswith("libabsl") for n in x.loaded)))
    total = sum(x.bytes for x in libraries)
    print("%-12s %12d" % ("all", total))

    passed = verdict("libraries_are_there", sorted(LAYERS ^ {x.name for x in libraries}))
    passed &= verdict("only_own_symbols_are_exported", [s for x in libraries for s in x.foreign])
    passed &= verdict("each_library_shows_something", [x.name for x in libraries if not x.public])
    passed &= verdict("other_libraries_are_found", [x.name + ": " + n for x in libraries for n in x.missing])
    passed &= verdict("each_links_what_its_target_says", [
        "%s loads %s" % (x.name, n) for x in libraries for n in x.loaded
        for word in WITHOUT.get(x.name, ()) if word in n])
    passed &= verdict("names_carry_the_version", [
        x.soname for x in libraries if not re.fullmatch(r"libsherd_\w+\.so\.\d+\.\d+", x.soname)])
    passed &= verdict("stripped_size", [] if total < LIMIT_BYTES else ["%d bytes of %d" % (total, LIMIT_BYTES)])
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
