"""The files of a checkout, as the lint sees them."""

import os
import re
import subprocess

LAYERS = ("runtime", "autograd", "checkpoint", "shard")
CODE = (".h", ".cc", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def without_comments_and_strings(text):
    """Returns C++ text with comments and literals blanked, line by line as before."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    return pattern.sub(blank, text)


class Tree:
    """A checkout: its tracked files and those git does not ignore, or all files where git knows nothing."""

    def __init__(self, root):
        self.root = os.path.abspath(root)
        listing = subprocess.run(
            ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if listing.returncode == 0:
            names = [name for name in listing.stdout.decode().split("\0") if name]
        else:
            names = [os.path.relpath(os.path.join(folder, name), self.root)
                     for folder, _, files in os.walk(self.root) for name in files]
        self.files = sorted({n for n in names if os.path.isfile(os.path.join(self.root, n))})
        self._texts = {}

    def text(self, name):
        if name not in self._texts:
            with open(os.path.join(self.root, name), "rb") as file:
                self._texts[name] = file.read().decode("utf-8", "replace")
        return self._texts[name]

    def code(self, *folders):
        """C++ and CUDA files, of all folders or of some of the top level."""
        return [n for n in self.files if n.endswith(CODE) and (not folders or n.split("/")[0] in folders)]

    def public_headers(self):
        return [n for n in self.code(*LAYERS) if n.endswith(".h") and "internal" not in n.split("/")]

    def includes(self, name):
        """(line, opening quote or bracket, path) of each include."""
        text = self.text(name)
        return [(text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)) for m in INCLUDE.finditer(text)]

    def project_includes(self, name):
        """(line, repository path) of each include written as "sherd/..."."""
        return [(line, path[len("sherd/"):]) for line, _, path in self.includes(name) if path.startswith("sherd/")]

    def matches(self, name, pattern, plain=False):
        """Line numbers where `pattern` occurs in code, or in the plain text."""
        text = self.text(name) if plain else without_comments_and_strings(self.text(name))
        return [text.count("\n", 0, m.start()) + 1 for m in re.finditer(pattern, text, re.MULTILINE)]
