#!/usr/bin/env python3
"""Writes tests/golden/data/<part>.txt from ops_<part>.py, one for each part named (all without a name).

--check writes nothing and says whether the files are what it would write: numbers within 1e-13, since another
PyTorch may round otherwise. Needs PyTorch; the tests do not."""

import argparse
import glob
import importlib
import os
import sys

import golden

HERE = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 1e-13


def parts():
    names = sorted(glob.glob(os.path.join(HERE, "ops_*.py")))
    return [os.path.basename(name)[len("ops_"):-len(".py")] for name in names]


def text_of(part):
    golden.ENTRIES.clear()
    importlib.import_module("ops_" + part)
    names = [entry[0] for entry in golden.ENTRIES]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit("%s: entries with one name: %s" % (part, ", ".join(sorted(twice))))
    return "# Written by tests/golden/make_golden.py from ops_%s.py.\n" % part + "".join(
        golden.text_of(entry) for entry in golden.ENTRIES)


def same(word, other):
    if word == other:
        return True
    try:
        return abs(float(word) - float(other)) <= TOLERANCE * max(1.0, abs(float(other)))
    except ValueError:
        return False


def difference(stored, text):
    """The first line that differs, or None."""
    stored, text = stored.splitlines(), text.splitlines()
    for number, (old, new) in enumerate(zip(stored, text), 1):
        words, others = old.split(), new.split()
        if len(words) != len(others) or not all(map(same, words, others)):
            return "line %d" % number
    return None if len(stored) == len(text) else "the number of lines"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    parser.add_argument("parts", nargs="*", metavar="part", help="of: " + ", ".join(parts()))
    arguments = parser.parse_args()
    bad = False
    for part in arguments.parts or parts():
        path = os.path.join(HERE, "data", part + ".txt")
        text = text_of(part)
        if not arguments.check:
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            print("%s: %d bytes" % (path, len(text)))
            continue
        with open(path, encoding="ascii") as file:
            where = difference(file.read(), text)
        print("%s: %s" % (part, "differs in " + where if where else "as stored"))
        bad = bad or where is not None
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
