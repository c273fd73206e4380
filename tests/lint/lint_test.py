"""Feeds every rule of the lint something bad and something good, and sees it fail and pass."""

import contextlib
import io
import os
import sys
import tempfile

import lint
from rules import RULES
from tree import Tree, without_comments_and_strings

HEADER = "#pragma once\n"
ENGINE = "sherd_layer(engine DIR shard\n  SOURCES\n    unit.cc\n  PUBLIC sherd::core)\n"

# Rule: (files it must complain about, files it must accept).
CASES = {
    "arrows": (
        [{"runtime/core/a.cc": '#include "sherd/runtime/kernels/b.h"\n'},
         {"autograd/a.cc": '#include "sherd/runtime/comm/b.h"\n'},
         {"checkpoint/a.cc": '#include "sherd/shard/b.h"\n'},
         {"shard/a.cc": '#include "sherd/checkpoint/b.h"\n'},
         {"runtime/comm/a.cc": '#include "sherd/autograd/b.h"\n'}],
        [{"shard/a.cc": '#include "sherd/runtime/comm/b.h"\n#include "sherd/autograd/c.h"\n'},
         {"runtime/core/a.cc": '#include "sherd/runtime/base/b.h"\n'}]),
    "engine_without_tape": (
        [{"shard/CMakeLists.txt": ENGINE, "shard/unit.cc": '#include "sherd/shard/other.h"\n',
          "shard/other.h": '#include "sherd/autograd/tape.h"\n'},
         {"shard/CMakeLists.txt": ENGINE, "shard/unit.cc": '#include "sherd/runtime/kernels/matmul.h"\n'},
         {"shard/CMakeLists.txt": ENGINE},
         {"shard/unit.cc": ""}],
        [{"shard/CMakeLists.txt": ENGINE, "shard/unit.cc": '#include "sherd/runtime/core/b.h"\n',
          "shard/fully_shard.h": '#include "sherd/autograd/tape.h"\n'}]),
    "layout_is_arithmetic": (
        [{"shard/layout.h": '#include "sherd/runtime/core/tensor.h"\n'}],
        [{"shard/layout.h": '#include "sherd/runtime/core/dtype.h"\n'}]),
    "include_prefix": (
        [{"runtime/core/a.cc": '#include "b.h"\n', "runtime/core/b.h": HEADER},
         {"tests/shard/a.cc": '#include "shard/b.h"\n', "shard/b.h": HEADER},
         {"shard/a.cc": '#include "sherd/shard/gone.h"\n'},
         {"shard/a.cc": '#include "tests/support/b.h"\n', "tests/support/b.h": HEADER},
         {"shard/a.cc": "#include <sherd/shard/b.h>\n", "shard/b.h": HEADER}],
        [{"shard/a.cc": '#include <vector>\n#include "absl/status/status.h"\n#include "sherd/shard/b.h"\n',
          "shard/b.h": HEADER, "tests/x.cc": '#include "tests/support/c.h"\n'}]),
    "backend_conditionals": (
        [{"shard/a.cc": "#ifdef SHERD_WITH_CUDA\n#endif\n"},
         {"runtime/core/a.h": "#if defined(__CUDACC__)\n#endif\n"}],
        [{"runtime/cuda/a.cc": "#ifdef SHERD_WITH_CUDA\n#endif\n", "shard/a.cc": "#ifndef NDEBUG\n#endif\n"}]),
    "public_headers_hide_backends": (
        [{"runtime/comm/a.h": "#include <gloo/context.h>\n"}, {"runtime/cuda/a.h": "#include <cuda_runtime.h>\n"}],
        [{"runtime/comm/a.cc": "#include <gloo/context.h>\n",
          "runtime/comm/internal/a.h": "#include <gloo/context.h>\n"}]),
    "comment_share": (
        [{"shard/a.h": HEADER + "int F();\n" * 30}],
        [{"shard/a.h": HEADER + "// What it does.\nint F();\n" * 20}, {"shard/a.h": HEADER + "int F();\n" * 5}]),
    "public_headers_do_not_throw": (
        [{"shard/a.h": "inline void F() { throw 1; }\n"}, {"shard/a.h": "inline void F() { try { G(); } catch (...) {} }\n"}],
        [{"shard/a.h": "// throws an Error\nvoid ThrowIt();\n", "shard/a.cc": "void F() { throw 1; }\n"}]),
    "pragma_once": (
        [{"shard/a.h": "int F();\n"}], [{"shard/a.h": HEADER + "int F();\n"}]),
    "banned_names": (
        [{"shard/a.h": "#include <source_location>\n"}, {"shard/a.cc": "absl::Mutex mutex;\n"},
         {"shard/a.cc": "void F(absl::string_view s);\n"}, {"shard/a.cc": 'void F() { printf("x"); }\n'},
         {"shard/a.cc": "void F() { std::cout << 1; }\n"}, {"shard/a.cc": 'void F() { setenv("A", "1", 1); }\n'},
         {"shard/a.cc": "void F() { std::abort(); }\n"}, {"shard/a.cc": "std::mt19937 engine;\n"}],
        [{"shard/a.cc": '// absl::Mutex\nconst char* s = "std::cout";\nvoid F() { std::fprintf(stderr, "x"); }\n',
          "examples/a.cc": 'int main() { printf("x"); }\n'}]),
    "environment_is_read_in_one_place": (
        [{"shard/a.cc": 'const char* F() { return std::getenv("HOME"); }\n'},
         {"runtime/base/a.cc": "extern char** environ;\n"},
         {"runtime/comm/launch.cc": 'v.Text("SHERD_NEW");\n', "runtime/comm/README.md": "| SHERD_OLD | |\n"}],
        [{"runtime/comm/launch.cc": 'get(std::getenv("SHERD_OLD"));\n', "runtime/comm/README.md": "| SHERD_OLD | |\n"},
         {"shard/a.cc": "// getenv(name) is for others\n", "tests/a.cc": 'getenv("HOME");\n'}]),
    "mutable_globals": (
        [{"shard/a.cc": "int F() {\n  static int calls = 0;\n  return ++calls;\n}\n"},
         {"shard/a.cc": "  static std::map<int, int> cache;\n"}],
        [{"shard/a.cc": "  static const int kA = 0;\n  static constexpr int kB = 1;\nstatic int F(int a) {\n",
          "shard/a.h": "  static Device Cpu(CpuOptions options = {});\n  static_assert(sizeof(int) == 4);\n"}]),
    "file_length": ([{"shard/a.cc": "int a;\n" * 501}], [{"shard/a.cc": "int a;\n" * 500}]),
    "headers_are_used": (
        [{"shard/a.h": "", "shard/a.cc": '#include "sherd/shard/a.h"\n'}],
        [{"shard/a.h": "", "tests/shard/a_test.cc": '#include "sherd/shard/a.h"\n'}]),
    "machine_paths": (
        [{"README.md": "see /wor" + "k/main\n"}, {"tests/a.sh": "cd /roo" + "t/x\n"}],
        [{"README.md": "network/ and the repository root/\n"}]),
    "top_level": ([{"docs/a.md": ""}, {"Makefile": ""}], [{"README.md": "", ".ci/run": "", "shard/a.h": ""}]),
    "unfinished": (
        [{"shard/a.cc": "// TOD" + "O: more\n"}, {"shard/a.cc": "// Not yet implemente" + "d.\n"}],
        [{"shard/a.cc": "// what is left to do\n"}]),
    "tests_can_fail": (
        [{"tests/shard/a_test.cc": "EXPECT_TRUE(true);\n"}, {"tests/shard/a_test.cc": "TEST(A, DISABLED_B) {}\n"}],
        [{"tests/shard/a_test.cc": "EXPECT_TRUE(a);\nTEST(A, B) {}\n"}]),
    "build_files": (
        [{"shard/CMakeLists.txt": "target_compile_options(a PRIVATE -march=native)\n"},
         {"CMakeLists.txt": "FetchContent_Declare(a)\n"}],
        [{"CMakeLists.txt": "# never -march=native\nadd_subdirectory(shard)\n"}]),
    "white_space": (
        [{"shard/a.cc": "int a; \n"}, {"shard/a.cc": "int a;"}], [{"shard/a.cc": "int a;\n"}]),
}


@contextlib.contextmanager
def checkout(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        yield root


def quietly(function, *arguments):
    """Returns the result and what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = function(*arguments)
    return result, out.getvalue()


def check(name, problems):
    print("FAIL %s: %s" % (name, "; ".join(problems)) if problems else "PASS " + name, flush=True)
    return not problems


def test_rules():
    passed = True
    for name, function in RULES.items():
        problems = []
        bad, good = CASES.get(name, ([], []))
        if not bad or not good:
            problems.append("has no case here")
        for files in bad:
            with checkout(files) as root:
                if not list(function(Tree(root))):
                    problems.append("accepts %r" % files)
        for files in good:
            with checkout(files) as root:
                found = list(function(Tree(root)))
                if found:
                    problems.append("refuses %r: %s" % (files, found))
        passed = check("rule " + name, problems) and passed
    return passed


def test_blanking():
    text = 'int a; // throw\nconst char* s = "throw \\" throw"; /* throw\nthrow */ int n = 1\'000; char c = \'"\'; throw;\n'
    blanked = without_comments_and_strings(text)
    problems = []
    if blanked.count("throw") != 1 or blanked.count("\n") != text.count("\n") or "1'000" not in blanked:
        problems.append(repr(blanked))
    return check("comments and strings are blanked", problems)


def expect(name, function, good, bad, output):
    """Runs a part of the lint on a good and a bad checkout."""
    problems = []
    for files, wanted in ((good, True), (bad, False)):
        with checkout(files) as root:
            include = os.path.join(root, "build/include")
            os.makedirs(include)
            os.symlink(root, os.path.join(include, "sherd"))
            with open(os.path.join(root, "build/compile_commands.json"), "w", encoding="utf-8") as file:
                file.write('[{"directory": "%s", "command": "g++ -std=c++20 -c shard/a.cc", "file": "%s/shard/a.cc"}]'
                           % (root, root))
            passed, printed = quietly(function, root)
            if "SKIP" in printed and "FAIL" not in printed:
                print(printed.strip().split("\n")[-1].replace("SKIP ", "SKIP " + name + " of "))
                return True
            if passed != wanted or (not wanted and output not in printed):
                problems.append("said %s about %r: %s" % (passed, files, printed.strip()))
    return check(name, problems)


def test_compilers():
    a = {"shard/a.cc": "namespace sherd {\nint Twice(int value) { return 2 * value; }\n}  // namespace sherd\n"}
    dots = {name: settings(name) for name in (".clang-format", ".clang-tidy")}
    passed = expect("clang_format", lint.check_format, {**a, **dots}, {"shard/a.cc": "int  Twice( int a );\n", **dots},
                    "shard/a.cc")
    passed &= expect("clang_tidy", lambda root: lint.check_tidy(root, root + "/build", True), {**a, **dots},
                     {"shard/a.cc": "int Twice(int A) { return 2 * A; }\n", **dots}, "shard/a.cc:1: invalid case style")
    passed &= expect("sources_in_targets", lambda root: lint.check_targets(root, root + "/build"), a,
                     {**a, "tests/shard/a_test.cc": "\n"}, "tests/shard/a_test.cc")
    passed &= expect("headers_alone", lambda root: lint.check_headers(root, root + "/build"),
                     {"shard/a.h": HEADER + "#include <string>\nstd::string F();\n"},
                     {"shard/a.h": HEADER + "std::string F();\n"}, "shard/a.h")
    passed &= expect("scripts_parse", lint.check_scripts, {"tests/a.sh": "echo a\n", "tests/a.py": "print(1)\n"},
                     {"tests/a.sh": "if true; then\n"}, "tests/a.sh")
    return passed


def settings(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..", name)
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(0 if all([test_rules(), test_blanking(), test_compilers()]) else 1)
