"""The rules that reading the text can check. Each is a function of a Tree that yields (place, reason)."""

import fnmatch
import os
import re

from tree import LAYERS

RULES = {}


def rule(function):
    RULES[function.__name__] = function
    return function


# What the files of a folder may include, besides their own folder: the arrows between the layers.
ARROWS = {
    "runtime/base": [],
    "runtime/core": ["runtime/base"],
    "runtime/kernels": ["runtime/base", "runtime/core", "runtime/cpu", "runtime/cuda"],
    "runtime/cpu": ["runtime/base", "runtime/core", "runtime/kernels"],
    "runtime/cuda": ["runtime/base", "runtime/core", "runtime/kernels"],
    "runtime/comm": ["runtime/base", "runtime/core", "runtime/cuda"],
    "runtime/interop": ["runtime/base", "runtime/core"],
    "runtime/io": ["runtime/base", "runtime/core"],
    "autograd": ["runtime/base", "runtime/core", "runtime/kernels"],
    "checkpoint": ["runtime/base", "runtime/core", "autograd"],
    "shard": ["runtime/base", "runtime/core", "runtime/kernels", "runtime/comm", "runtime/io", "autograd"],
}
# What the engine may reach of the kernels: not those that need oneDNN.
WITH_ONEDNN = "runtime/kernels/matmul"
# Layout is arithmetic: no tensors and no ranks.
LAYOUT = {"runtime/base", "runtime/core/dtype.h", "runtime/core/shape.h"}
TOP_LEVEL = {"CMakeLists.txt", "runtime", "shard", "checkpoint", "autograd", "tests", "examples", "README.md"}


def layer_of(name):
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "runtime" else parts[0]


@rule
def arrows(tree):
    for name in tree.code(*LAYERS):
        layer = layer_of(name)
        allowed = [layer] + ARROWS.get(layer, [])
        for line, target in tree.project_includes(name):
            if layer_of(target) not in allowed:
                yield "%s:%d" % (name, line), "%s may not include sherd/%s" % (layer, target)


@rule
def engine_without_tape(tree):
    """The sources of the target engine reach neither the tape nor oneDNN, however far one follows."""
    build = "shard/CMakeLists.txt"
    listed = re.search(r"sherd_layer\(engine\b[^)]*", tree.text(build)) if build in tree.files else None
    if listed is None:
        if tree.code("shard"):
            yield build, "there is no sherd_layer(engine ...)"
        return
    for name in ("shard/" + source for source in re.findall(r"[\w/]+\.cc\b", listed.group(0))):
        if name not in tree.files:
            yield name, "is listed in %s and absent" % build
            continue
        seen, queue = {}, [(name, name)]
        while queue:
            current, way = queue.pop()
            for _, target in tree.project_includes(current) if current in tree.files else []:
                if target not in seen:
                    seen[target] = way + " > " + target
                    queue.append((target, seen[target]))
        for target, way in sorted(seen.items()):
            if target.startswith(("autograd/", "checkpoint/")):
                yield name, "the engine reaches the tape: " + way
            elif target.startswith(WITH_ONEDNN):
                yield name, "the engine reaches oneDNN: " + way


@rule
def layout_is_arithmetic(tree):
    for name in tree.code("shard"):
        if not fnmatch.fnmatch(name, "shard/layout*"):
            continue
        for line, target in tree.project_includes(name):
            if target not in LAYOUT and layer_of(target) not in LAYOUT and not target.startswith("shard/layout"):
                yield "%s:%d" % (name, line), "layout may not include sherd/" + target


@rule
def include_prefix(tree):
    known = {"/".join(parts[i:]) for parts in (n.split("/") for n in tree.code(*LAYERS)) for i in range(len(parts))}
    for name in tree.code():
        top = name.split("/")[0]
        for line, quote, path in tree.includes(name):
            place = "%s:%d" % (name, line)
            if quote == "<":
                if path.startswith(("sherd/", "absl/", "tests/", "examples/")):
                    yield place, "<%s> is included with quotes" % path
            elif path.startswith("sherd/"):
                if path[len("sherd/"):] not in tree.files:
                    yield place, "there is no " + path
            elif path.startswith("tests/") and top != "tests":
                yield place, "only tests include " + path
            elif path.startswith("examples/") and top not in ("tests", "examples"):
                yield place, "only examples and tests include " + path
            elif path.split("/")[0] in LAYERS or (top in LAYERS and path in known):
                yield place, '"%s" lacks the prefix sherd/' % path


@rule
def backend_conditionals(tree):
    pattern = r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*(SHERD_WITH|SHERD_HAVE|__CUDA|CUDA_VERSION|CUDART|NCCL|GLOO)"
    for name in tree.code(*LAYERS):
        if not name.startswith(("runtime/cuda/", "runtime/comm/")):
            for line in tree.matches(name, pattern):
                yield "%s:%d" % (name, line), "a backend conditional outside runtime/cuda and runtime/comm"


@rule
def public_headers_hide_backends(tree):
    hidden = re.compile(r"(cuda|cublas|nccl|gloo/|dnnl|oneapi/|mpi\.h|nlohmann|boost/)")
    for name in tree.public_headers():
        for line, _, path in tree.includes(name):
            if hidden.match(path):
                yield "%s:%d" % (name, line), "a public header may not include " + path


@rule
def comment_share(tree):
    for name in tree.public_headers():
        lines = [line.strip() for line in tree.text(name).split("\n") if line.strip()]
        comments = sum(line.startswith("//") for line in lines)
        if len(lines) > 25 and comments * 4 < len(lines):
            yield name, "%d of %d lines are comments, less than a quarter" % (comments, len(lines))


@rule
def public_headers_do_not_throw(tree):
    for name in tree.public_headers():
        for line in tree.matches(name, r"\b(throw|try|catch)\b"):
            yield "%s:%d" % (name, line), "public headers compile with -fno-exceptions"


@rule
def pragma_once(tree):
    for name in tree.code():
        if name.endswith((".h", ".cuh")) and not tree.text(name).startswith("#pragma once\n"):
            yield name, "a header begins with #pragma once"


# Where, what, and why not.
BANNED = [
    (LAYERS + ("tests", "examples"), r"std::source_location|<source_location>", "does not compile with clang 14; use CallSite"),
    (LAYERS + ("tests", "examples"), r"absl::(Mutex|MutexLock|CondVar|Notification)\b", "false races under ThreadSanitizer; use std::mutex"),
    (LAYERS + ("tests", "examples"), r"absl::(string_view|optional|variant|Span)\b", "interfaces use std's vocabulary types"),
    (LAYERS, r"\btarget_clones\b", "crashes under ThreadSanitizer; use a function table"),
    (LAYERS, r"std::(cout|printf|puts)\b|(?<![\w:])(printf|puts)\s*\(|\bstdout\b", "nothing goes to stdout; use the caller's log sink"),
    (LAYERS, r"\b(setenv|putenv|unsetenv|prctl|sigaction|omp_set_dynamic)\s*\(|\bstd::(signal|setlocale)\b", "changes state of the process that embeds us"),
    (LAYERS, r"\b(std::)?(abort|exit|_exit|quick_exit|terminate)\s*\(\s*\d*\s*\)", "ends a process that is not ours"),
    (LAYERS, r"\b(rand|srand|rand_r)\s*\(|\bstd::(mt19937|random_device|default_random_engine)", "randomness is Philox, keyed and without state"),
]


@rule
def banned_names(tree):
    for folders, pattern, why in BANNED:
        for name in tree.code(*folders):
            for line in tree.matches(name, pattern):
                yield "%s:%d" % (name, line), why


# Where the environment is read: the launch, and the instruction set. runtime/comm/README.md lists the variables.
ENVIRONMENT = {"runtime/comm/launch.cc", "runtime/cpu/isa.cc"}


@rule
def environment_is_read_in_one_place(tree):
    for name in tree.code(*LAYERS):
        if name not in ENVIRONMENT:
            for line in tree.matches(name, r"\b(secure_)?getenv\s*\(|\benviron\b"):
                yield "%s:%d" % (name, line), "the environment is read by ParseLaunch; take what it found"
    documented = tree.text("runtime/comm/README.md") if "runtime/comm/README.md" in tree.files else ""
    for name in sorted(ENVIRONMENT & set(tree.files)):
        for variable in sorted(set(re.findall(r'"([A-Z][A-Z0-9]*_[A-Z0-9_]+|RANK|TMPDIR)"', tree.text(name)))):
            if not re.search(r"\b%s\b" % variable, documented):
                yield name, variable + " is not in the tables of runtime/comm/README.md"


@rule
def mutable_globals(tree):
    """Statics inside functions and classes; those of namespaces are clang-tidy's."""
    pattern = r"^[ \t]*(?:inline[ \t]+)?static[ \t]+(?!const\b|constexpr\b|inline\b|_assert)(?:thread_local[ \t]+)?[\w:<>,\*& \t]+[ \t]\**&?\w+[ \t]*(?:=[^=]|;|\{)"
    for name in tree.code(*LAYERS):
        for line in tree.matches(name, pattern):
            yield "%s:%d" % (name, line), "a mutable static; objects own their state"


@rule
def file_length(tree):
    for name in tree.files:
        if name.endswith((".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake")):
            count = tree.text(name).count("\n")
            if count > 500:
                yield name, "%d lines; is it one subject?" % count


@rule
def headers_are_used(tree):
    users = {}
    for name in tree.code():
        for _, target in tree.project_includes(name):
            if os.path.splitext(name)[0] != os.path.splitext(target)[0]:
                users.setdefault(target, name)
    for name in tree.public_headers():
        if name not in users:
            yield name, "no test and no other source includes it"


@rule
def machine_paths(tree):
    pattern = r"(^|[^a-z])/(wor[k]|far[m]|roo[t])/|[.]librar[y]\b"
    for name in tree.files:
        for line in tree.matches(name, pattern, plain=True):
            yield "%s:%d" % (name, line), "a path of one machine"


@rule
def top_level(tree):
    for name in sorted({n.split("/")[0] for n in tree.files}):
        if name not in TOP_LEVEL and not name.startswith("."):
            yield name, "is not a name of the top level"


@rule
def unfinished(tree):
    pattern = r"\b(TOD[O]|FIXM[E]|XX[X]|not (yet )?implemente[d]|placeholde[r])\b"
    for name in tree.files:
        if name.endswith((".h", ".cc", ".cu", ".sh", ".py", ".cmake", "CMakeLists.txt", ".md")):
            for line in tree.matches(name, "(?i)" + pattern, plain=True):
                yield "%s:%d" % (name, line), "an unfinished mark"


@rule
def tests_can_fail(tree):
    pattern = r"\b(EXPECT|ASSERT)_TRUE\(true\)|\bSUCCEED\(\)|\bTEST(_F|_P)?\(\s*\w+,\s*DISABLED_"
    for name in tree.code("tests"):
        for line in tree.matches(name, pattern):
            yield "%s:%d" % (name, line), "a test that cannot fail"


@rule
def build_files(tree):
    bad = [(r"-march=native", "instruction sets are chosen at run time"),
           (r"-fopenmp(?!-simd)", "no OpenMP of our own"),
           (r"FetchContent|ExternalProject|file\s*\(\s*DOWNLOAD", "no downloads at configure time"),
           (r"file\s*\(\s*GLOB", "sources are listed")]
    for name in tree.files:
        if name.endswith((".cmake", "CMakeLists.txt")):
            text = re.sub(r"#[^\n]*", "", tree.text(name))
            for pattern, why in bad:
                for match in re.finditer(pattern, text):
                    yield "%s:%d" % (name, text.count("\n", 0, match.start()) + 1), why


@rule
def white_space(tree):
    for name in tree.files:
        if name.endswith((".h", ".cc", ".cu", ".sh", ".py", ".cmake", ".txt", ".md", ".yml")):
            for line in tree.matches(name, r"[ \t]+$|\t(?=\S.*\S)" if name.endswith((".h", ".cc")) else r"[ \t]+$", plain=True):
                yield "%s:%d" % (name, line), "a tab or a blank at the end of a line"
            if tree.text(name) and not tree.text(name).endswith("\n"):
                yield name, "the last line has no end"
