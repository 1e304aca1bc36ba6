"""Writes bpe.txt: what the rule in torchamp/train/data/bpe.h makes of TEXT, by a slow, plain program.

It counts all pairs anew for every merge and cuts words by a regular expression, so it shares no idea
with the library's code. Run: python3 make_bpe.py > bpe.txt
"""

import re
from collections import Counter

SPACE, LETTER, DIGIT = rb"[ \t-\r]", rb"[A-Za-z\x80-\xff]", rb"[0-9]"
OTHER = rb"[^ \t-\rA-Za-z\x80-\xff0-9]"
WORD = re.compile(
    b"|".join(rb" %s{1,63}|%s{1,64}" % (sign, sign) for sign in (LETTER, DIGIT, OTHER))
    + rb"|%s{1,63}(?= [^ \t-\r])|%s{1,64}" % (SPACE, SPACE)
)

TEXT = (
    b"The loss scale grows after a run of good steps, and shrinks when a gradient overflows.\n"
    b"A gradient that overflows is skipped; the next step is tried with half the scale.\n"
    b"\n"
    b"    for (auto& batch : loader) {\n        scaler.scale(loss).backward();\n    }\n"
    b"65504 65504 65504 655 1024 2048 4096 8192 16384 32768 65536\t\t65536 \n"
    + "Gr\u00f6\u00dfe, gr\u00f6\u00dfer, am gr\u00f6\u00dften; \u6df7\u5408\u7cbe\u5ea6\u6df7\u5408\u7cbe\u5ea6.\n".encode()
    + b"aaaaaaa aaaaaaa aaa aa a\x00\x00\x00\x00\xff\xfe\xff\xfe\xff\xfe--------====----====\n"
    + b"z" * 150 + b" " + b"y" * 130 + b" " * 65 + b"x" + b" " * 64 + b"x" + b" " * 200 + b"\n\n\n  end"
) * 2
OTHER_TEXT = b"The next gradient grows; 65504 scalers scale losses  and 7 zzzzzz \x80\x81 aaaaa.\r\n"


def replace(word, pair, merged):
    out, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(merged)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def train(text, vocab_size):
    words = [list(word) for word in WORD.findall(text)]
    merges = []
    while 256 + len(merges) < vocab_size:
        counts = Counter()
        for word in words:
            counts.update(zip(word, word[1:]))
        if not counts:
            break
        pair, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        if count < 2:
            break
        words = [replace(word, list(pair), 256 + len(merges)) for word in words]
        merges.append(pair)
    return merges


def encode(text, merges):
    tokens = []
    for word in WORD.findall(text):
        word = list(word)
        for i, pair in enumerate(merges):
            word = replace(word, list(pair), 256 + i)
        tokens += word
    return tokens


assert b"".join(WORD.findall(TEXT)) == TEXT
for vocab_size in (256, 300, 5000):
    merges = train(TEXT, vocab_size)
    print("text", TEXT.hex())
    print("vocab_size", vocab_size)
    print("merges", *(f"{left} {right}" for left, right in merges))
    print("tokens", *encode(TEXT, merges))
    print("other_text", OTHER_TEXT.hex())
    print("other_tokens", *encode(OTHER_TEXT, merges))
