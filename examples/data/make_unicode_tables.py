#!/usr/bin/env python3
"""Writes unicode_tables_classes.cc and unicode_tables_nfd.cc: make_unicode_tables.py <8.h> <9.h>, then clang-format -i.

The arguments are unicodedata_db.h of the package unicodedata2, versions 8.0.0 and 9.0.0.post4 (pip download --no-deps
--no-binary :all: unicodedata2==8.0.0): the characters that the package tokenizers classifies are those of Unicode 8, and
those it decomposes of Unicode 9. How characters decompose never changes, and is Python's; lower case is Python's too."""

import os
import re
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
CODES = 0x110000
HANGUL = range(0xAC00, 0xD7A4)


class Database:
    """Categories and combining classes of one version."""

    def __init__(self, name):
        with open(name, encoding="ascii") as file:
            text = file.read()
        self.version = re.search(r'UNIDATA_VERSION "([\d.]+)"', text).group(1)
        names = re.findall(r'"(\w\w)"', self.body(text, "_PyUnicode_CategoryNames"))
        records = re.findall(r"\{(\d+), (\d+),", self.body(text, "_PyUnicode_Database_Records"))
        index1, index2 = (list(map(int, re.findall(r"\d+", self.body(text, "index%d" % i)))) for i in (1, 2))
        shift = int(re.search(r"#define SHIFT (\d+)", text).group(1))
        self.category, self.combining = [], []
        for code in range(CODES):
            record = records[index2[(index1[code >> shift] << shift) + (code & ((1 << shift) - 1))]]
            self.category.append(names[int(record[0])])
            self.combining.append(int(record[1]))

    @staticmethod
    def body(text, name):
        return re.search(r"\b%s\[\] = \{(.*?)\n\};" % name, text, re.S).group(1)


def runs(values):
    """[first, last, value] of neighbours with the same value; those without one, None, are left out."""
    found = []
    for code, value in enumerate(values):
        if value is None:
            continue
        if found and found[-1][1] == code - 1 and found[-1][2] == value:
            found[-1][1] = code
        else:
            found.append([code, code, value])
    return found


def categories(database, wanted):
    return runs(True if category in wanted or category[0] in wanted else None for category in database.category)


def lower_runs():
    """[first, last, step, delta] of letters at a distance of 1 or 2 whose lower case is as far away."""
    found = []
    for code in range(CODES):
        lower = chr(code).lower()
        if lower == chr(code):
            continue
        if len(lower) > 1:
            assert code == 0x130 and lower == "i\u0307"
            continue
        delta = ord(lower) - code
        if found and found[-1][3] == delta and code - found[-1][1] in (1, 2) and found[-1][2] in (0, code - found[-1][1]):
            found[-1][1:3] = [code, code - found[-1][1]]
        else:
            found.append([code, code, 0, delta])
    return [[first, last, step or 1, delta] for first, last, step, delta in found]


def decompositions(assigned):
    """What each character becomes in one step, and runs [first, last, (size, index of the first part)]."""
    parts, places = [], [None] * CODES
    for code in range(CODES):
        field = unicodedata.decomposition(chr(code))
        if assigned[code] and field and field[0] != "<" and code not in HANGUL:
            step = [int(part, 16) for part in field.split()]
            places[code] = (len(step), len(parts) - len(step) * code)
            parts += step
    found = [[first, last, size, offset + size * first] for first, last, (size, offset) in runs(places)]
    return parts, found


def table(kind, name, rows):
    return "constexpr %s %s[] = {%s};\n" % (kind, name, ", ".join(rows))


def hexes(values):
    return ["0x%X" % value for value in values]


def row(first, last, *more):
    return "{0x%X, 0x%X%s}" % (first, last, "".join(", %d" % value for value in more))


FILE = """// Written by make_unicode_tables.py of Unicode %s.
#include "data/unicode_tables.h"

namespace data {
namespace {

%s
}  // namespace

%s
}  // namespace data
"""


def write(name, version, tables, functions):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as file:
        file.write(FILE % (version, "\n".join(tables), "\n".join(functions)))


def main():
    eight, nine = Database(sys.argv[1]), Database(sys.argv[2])
    write("unicode_tables_classes.cc", "%s, combining classes of %s, lower case of %s" %
          (eight.version, nine.version, unicodedata.unidata_version), [
        table("CodeRange", "kMarks", [row(*run[:2]) for run in categories(eight, ("Mn",))]),
        table("CodeRange", "kOthers", [row(*run[:2]) for run in categories(eight, ("Cc", "Cf", "Co"))]),
        table("CodeRange", "kPunctuation", [row(*run[:2]) for run in categories(eight, ("P",))]),
        table("CaseRange", "kLower", [row(*run) for run in lower_runs()]),
        table("CombiningRange", "kCombining", [row(*run) for run in runs(value or None for value in nine.combining)]),
    ], [
        "std::span<const CodeRange> NonspacingMarkRanges() { return kMarks; }\n",
        "std::span<const CodeRange> OtherRanges() { return kOthers; }\n",
        "std::span<const CodeRange> PunctuationRanges() { return kPunctuation; }\n",
        "std::span<const CaseRange> LowerRanges() { return kLower; }\n",
        "std::span<const CombiningRange> CombiningRanges() { return kCombining; }\n",
    ])
    parts, found = decompositions([category != "Cn" for category in nine.category])
    write("unicode_tables_nfd.cc", nine.version, [
        table("DecompositionRange", "kDecompositions", [row(*run) for run in found]),
        table("uint32_t", "kParts", hexes(parts)),
    ], [
        "std::span<const DecompositionRange> DecompositionRanges() { return kDecompositions; }\n",
        "std::span<const uint32_t> DecompositionParts() { return kParts; }\n",
    ])


if __name__ == "__main__":
    main()
