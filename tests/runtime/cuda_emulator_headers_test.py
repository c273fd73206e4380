"""Compares the emulator's headers with those of CUDA and NCCL, where they are installed.

Names the same values, declares the same functions: both are put into one source behind the real headers, values as
static_asserts and functions as second declarations, and the compiler finds what differs.
"""

import os
import re
import shutil
import subprocess
import sys

OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support/cuda_emulator/include")
HEADERS = ("cuda_runtime.h", "cuda.h", "cublasLt.h", "nccl.h")
VALUES = (r"\b((?:cuda|cublas|nccl|CU|CUDA|CUBLAS|CUBLASLT)_?\w+) = (\d+)", r"X\((cuda\w+), (\d+)\)",
          r"#define (cuda\w+) (0x\d+)")
STRUCTS = {"cuda_runtime.h": ("cudaPointerAttributes", "cudaLaunchConfig_t", "cudaLaunchAttribute", "float4", "char4"),
           "cuda.h": ("CUmemAllocationProp", "CUmemAccessDesc"),
           "cublasLt.h": ("cublasLtMatmulHeuristicResult_t", "cublasLtMatmulAlgo_t"),
           "nccl.h": ("ncclConfig_t", "ncclUniqueId")}


def compile_source(source, include):
    """What the compiler says, with the headers of one folder."""
    return subprocess.run(["g++", "-std=c++20", "-w", "-I", include, "-fsyntax-only", "-x", "c++", "-"], input=source,
                          env=dict(os.environ, LC_ALL="C"), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False).stdout


def checks(header):
    """The source that compiles behind the real header if ours says the same."""
    with open(os.path.join(OURS, header), encoding="utf-8") as file:
        text = file.read()
    values = {found for pattern in VALUES for found in re.findall(pattern, text)}
    lines = ['static_assert(static_cast<long>(%s) == %s, "%s");' % (name, value, name) for name, value in sorted(values)]
    functions = re.search(r'extern "C" \{(.*?)\n\}', text, re.DOTALL).group(1)
    lines.append('extern "C" {%s\n}' % re.sub(r" = \w+(?=[,)])", "", functions))
    return "#include <%s>\n%s\n" % (header, "\n".join(lines)), len(values), functions.count(";")


def measured(header, include):
    """Sizes and alignments, which the compiler says in its errors about a type that is not complete."""
    types = "\n".join("Size<sizeof(%s), alignof(%s)> %s_size;" % (name, name, name) for name in STRUCTS[header])
    output = compile_source("#include <%s>\ntemplate <int, int> struct Size;\n%s\n" % (header, types), include)
    return sorted(set(re.findall(r"Size<(\d+), (\d+)> (\w+)_size' has incomplete", output)))


def main():
    nvcc = shutil.which("nvcc")
    include = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "../include") if nvcc else ""
    passed = True
    for header in HEADERS:
        if not os.path.exists(os.path.join(include, header)):
            print("SKIP %s: not installed" % header)
            continue
        source, values, functions = checks(header)
        errors = [line for line in compile_source(source, include).split("\n") if "error" in line]
        ours, theirs = measured(header, OURS), measured(header, include)
        if ours != theirs or len(ours) != len(STRUCTS[header]):
            errors.append("sizes differ: %s, %s" % (ours, theirs))
        passed = passed and not errors
        print("FAIL %s: %s" % (header, errors[0]) if errors else
              "PASS %s: %d values, %d functions" % (header, values, functions))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
