"""Runs the lint, or one part of it. Prints a line "PASS name" or "FAIL name: reason" for each rule.

    lint.py text    ROOT                  the rules of rules.py
    lint.py format  ROOT [--fix]          clang-format 14 on every C++ file
    lint.py headers ROOT BUILD            each public header compiles alone, without exceptions
    lint.py tidy    ROOT BUILD [--all]    clang-tidy on the files that changed, or on all
    lint.py targets ROOT BUILD            each source, of tests too, belongs to a target of the build
    lint.py scripts ROOT                  shell and Python files parse
"""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

from rules import RULES
from tree import LAYERS, Tree

SHOWN = 30  # violations of one rule that are printed


def verdict(name, violations):
    """Prints what a rule found; returns whether it found nothing."""
    violations = list(violations)
    for place, reason in violations[:SHOWN]:
        print("  %s: %s" % (place, reason))
    if len(violations) > SHOWN:
        print("  ... and %d more" % (len(violations) - SHOWN))
    print("FAIL %s: %d violations" % (name, len(violations)) if violations else "PASS " + name, flush=True)
    return not violations


def skip(name, reason):
    print("SKIP %s: %s" % (name, reason), flush=True)
    return True


def in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          errors="replace", **options)


def llvm_tool(name):
    """The path of version 14 of an LLVM program, and the reason where there is none."""
    found = shutil.which(name + "-14") or shutil.which(name)
    if found is None:
        return None, name + " is not installed"
    version = re.search(r"version (\d+)", run([found, "--version"]).stdout)
    if version is None or version.group(1) != "14":
        return None, "%s is version %s; what it says differs from 14" % (name, version and version.group(1))
    return found, ""


def check_text(root):
    tree = Tree(root)
    return all([verdict(name, function(tree)) for name, function in RULES.items()])


def check_format(root, fix=False):
    tool, reason = llvm_tool("clang-format")
    if tool is None:
        return skip("clang_format", reason)
    files = [n for n in Tree(root).code() if n.endswith((".h", ".cc"))]
    if fix:
        return run([tool, "-i"] + files, cwd=root).returncode == 0
    def differs(name):
        return name if run([tool, "--dry-run", "--Werror", name], cwd=root).returncode else None
    return verdict("clang_format", [(n, "not as clang-format writes it") for n in in_parallel(differs, files) if n])


def first_error(output):
    lines = [line for line in output.split("\n") if "error" in line]
    return (lines or [output.strip()])[0][:300]


def check_headers(root, build):
    headers = Tree(root).public_headers()
    passed = True
    for compiler in ("g++", "clang++"):
        name = "headers_alone_" + ("gcc" if compiler == "g++" else "clang")
        path = shutil.which(compiler)
        if path is None:
            passed = skip(name, compiler + " is not installed") and passed
            continue
        def broken(header):
            result = run([path, "-std=c++20", "-fno-exceptions", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                          "-Wno-missing-field-initializers", "-I", os.path.join(build, "include"), "-x", "c++", "-"],
                         input='#include "sherd/%s"\n#include "sherd/%s"\n' % (header, header))
            return (header, first_error(result.stdout)) if result.returncode else None
        passed = verdict(name, [b for b in in_parallel(broken, headers) if b]) and passed
    return passed


def changed_files(root):
    """Files that differ from where the branch left the main line, or from the last commit but one."""
    def git(*arguments):
        return subprocess.run(["git", "-C", root] + list(arguments), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False).stdout.split("\n")
    head = git("rev-parse", "HEAD")[0]
    base = git("merge-base", "HEAD", "origin/HEAD")[0] or git("merge-base", "HEAD", "origin/main")[0]
    if not base or base == head:
        base = git("rev-parse", "--verify", "-q", "HEAD~1")[0]
    if not base:
        return None
    return set(git("diff", "--name-only", base)) | set(git("ls-files", "--others", "--exclude-standard"))


def check_tidy(root, build, everything=False):
    tool, reason = llvm_tool("clang-tidy")
    if tool is None:
        return skip("clang_tidy", reason)
    sources = [n for n in Tree(root).code(*LAYERS, "examples", "tests") if n.endswith(".cc")]
    if not everything:
        changed = changed_files(root)
        sources = [n for n in sources if not n.startswith("tests/") and (changed is None or n in changed)]
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        compiled = file.read()
    sources = [n for n in sources if "/" + n in compiled]
    if not sources:
        return skip("clang_tidy", "no source has changed")
    print("  %d sources" % len(sources), flush=True)
    def complaints(name):
        result = run([tool, "-p", build, "--quiet", "--warnings-as-errors=*",
                      "--extra-arg=-Wno-unknown-warning-option", os.path.join(root, name)])
        # A source is reached through a link in the build folder; show the path of the repository.
        found = re.findall(r"^(?:\S*/)?((?:%s|tests|examples)/\S+:\d+):\d+: (?:warning|error): (.*)$" % "|".join(LAYERS),
                           result.stdout, re.MULTILINE)
        if result.returncode and not found:
            return [(name, first_error(result.stdout))]
        return found
    found = {violation for violations in in_parallel(complaints, sources) for violation in violations}
    return verdict("clang_tidy", sorted(found))


def check_targets(root, build):
    tree = Tree(root)
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        compiled = {os.path.relpath(os.path.normpath(entry["file"]), tree.root) for entry in json.load(file)}
    # What is compiled instead of what depends on the machine; the consumer and both embed examples are projects of their own.
    exempt = ("runtime/cuda/", "runtime/comm/nccl", "runtime/comm/internal/nccl", "tests/install/", "examples/embed/", "examples/embed_tape/")
    sources = [n for n in tree.code(*LAYERS, "tests", "examples") if n.endswith(".cc") and not n.startswith(exempt)]
    return verdict("sources_in_targets", [(n, "is in no target") for n in sources if n not in compiled])


def check_scripts(root):
    files = Tree(root).files
    def broken(name):
        path = os.path.join(root, name)
        if name.endswith(".py"):
            command = [sys.executable, "-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())", path]
        else:
            command = ["bash", "-n", path]
        result = run(command)
        return (name, result.stdout.strip().split("\n")[-1]) if result.returncode else None
    scripts = [n for n in files if n.endswith((".py", ".sh")) or n == ".ci/run"]
    return verdict("scripts_parse", [b for b in in_parallel(broken, scripts) if b])


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    part, arguments, flags = sys.argv[1], sys.argv[2:], set(sys.argv[2:])
    arguments = [a for a in arguments if not a.startswith("--")]
    if part == "format":
        return 0 if check_format(arguments[0], "--fix" in flags) else 1
    if part == "tidy":
        everything = "--all" in flags or bool(os.environ.get("SHERD_TEST_FULL"))
        return 0 if check_tidy(*arguments, everything) else 1
    parts = {"text": check_text, "headers": check_headers, "scripts": check_scripts, "targets": check_targets}
    return 0 if parts[part](*arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
