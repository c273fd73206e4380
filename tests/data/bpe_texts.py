"""Texts that tokenizers are compared on: what a Debian machine has, and lines made to be difficult."""

import glob
import gzip
import random
import unicodedata

WORDS = ["don't", "I'll", "we've", "it's", "they'RE", "'s", "''t", "naïve", "Straße", "Ελλάδα", "русский", "日本語", "한국어", "ไทย", "हिन्दी",
         "עברית", "العربية", "e\u0301", "o\u0308\u0323", "👍", "👩\u200d👩\u200d👧", "🇩🇪", "🏽", "\ufe0f", "x", "The", "HTTP", "foo_bar", "a1b22", "3.14",
         "1,000", "٣٤", "Ⅷ", "½", "²", "㊿", "𝔘𝔫𝔦", "\U000e0020", "\U00010330", "\ufffd", "\u0000", "\x7f", "\u0085", "--", "...", "#!", "==>", "({[",
         "$€", "\\n", "%d", "http://example.org/a?b=c&d", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<mask>", "<#", "|>", "A" * 40, "ab" * 60]
# What tokenizers of word pieces do something with: added tokens, case, accents, ideographs, syllables, long words.
PIECES = ["[SEP]", "[MASK]", "[CLS]", "[UNK]", "[PAD]", "[mask]", "[MASK", "New Token", "new token", "İstanbul", "ΑΣ", "Σ", "ǅ", "ẞ", "Ångström",
          "Ệ", "e\u0323\u0301", "a\u0301\u0323\u0334", "\u1e69", "가각", "한글", "中文字", "㐀", "豈", "\U00020000", "カタカナ", "x" * 100, "y" * 101,
          "un##able", "can't", "A.B.C.", "\u302e\u302f", "\u2e43", "\u00ad", "\u200d", "\ue000", "\u0378", "¿Qué?", "«a»", "–", "©", "€5", "^_`|~"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x0b", "\x1c", "", "", " ", " "]


def difficult(count, seed=1, words=tuple(WORDS)):
    """Lines of words, of spaces of all kinds between them, and of characters from anywhere in Unicode."""
    pick = random.Random(seed)
    for _ in range(count):
        line = ""
        for _ in range(pick.randint(0, 12)):
            line += pick.choice(SPACES)
            if pick.random() < 0.15:
                code = pick.choice([pick.randrange(0x20, 0x3000), pick.randrange(0x3000, 0xD800), pick.randrange(0xE000, 0x32000)])
                # What is new in Unicode is not the same everywhere.
                if unicodedata.category(chr(code)) != "Cn":
                    line += chr(code)
            else:
                line += pick.choice(words)
        yield line


def planes(count, seed=1):
    """Lines of characters of all 17 planes, as likely as any other, among letters."""
    pick = random.Random(seed)
    for _ in range(count):
        line = ""
        while len(line) < 40:
            code = pick.choice([pick.randrange(0x3000), pick.randrange(0x10000), pick.randrange(0x110000)])
            if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
                line += chr(code) + pick.choice(["", "", "a", "Be ", "\u0301"])
        yield line


def found(count):
    """Lines of licences, descriptions of packages, copyrights and manual pages, as many files as it takes."""
    names = sorted(glob.glob("/usr/share/common-licenses/*")) + ["/var/lib/dpkg/status"]
    names += sorted(glob.glob("/usr/share/man/man[1-8]/*.gz")) + sorted(glob.glob("/usr/share/doc/*/copyright"))
    taken = set()
    for name in names:
        try:
            with (gzip.open if name.endswith(".gz") else open)(name, "rt", encoding="utf-8", errors="replace") as file:
                lines = file.read(400000).split("\n")
        except OSError:
            continue
        for line in lines[:: max(1, len(lines) // 400)]:
            if line not in taken:
                taken.add(line)
                yield line
            if len(taken) == count:
                return
