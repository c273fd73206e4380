#!/usr/bin/env python3
"""Writes unicode_classes.cc: make_unicode_classes.py > unicode_classes.cc && clang-format -i unicode_classes.cc.

Takes the package unicodedata2 where it is installed, whose version is that of its Unicode, else what Python has."""

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata


def ranges(major):
    """[first, last] of the code points whose general category begins with that letter."""
    found = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] != major:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, major):
    pairs = ", ".join("{0x%X, 0x%X}" % (first, last) for first, last in ranges(major))
    return "constexpr CodeRange %s[] = {%s};\n" % (name, pairs)


print("""// Written by make_unicode_classes.py of Unicode %s.
#include "data/unicode_classes.h"

#include <span>

#include "data/unicode_tables.h"

namespace data {
namespace {

%s
%s
bool In(std::span<const CodeRange> ranges, uint32_t code) {
  return FindRange(ranges, code) != nullptr;
}

}  // namespace

bool IsLetter(uint32_t code) { return In(kLetters, code); }

bool IsNumber(uint32_t code) { return In(kNumbers, code); }

bool IsSpace(uint32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace data""" % (unicodedata.unidata_version, table("kLetters", "L"), table("kNumbers", "N")))
