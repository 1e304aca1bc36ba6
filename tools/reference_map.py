#!/usr/bin/env python3
"""Checks tests/reference_map.tsv: every statement about torch.amp and every reported case has a row, and every test or row
of docs/differences.md that a row names exists.

usage: tools/reference_map.py              (from anywhere in the source tree; prints the counts)
       tools/reference_map.py --self-check (also breaks a copy of the table in every way that must be noticed)
"""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "reference_map.tsv"


def without_comments(text):
    return re.sub(r"^\s*(//|#).*$", "", text, flags=re.MULTILINE)


def known_tests():
    """The names that ctest prints; * stands for what CMake or an INSTANTIATE_TEST_SUITE_P fills in."""
    names = set()
    for cmake in (ROOT / "tests").glob("**/CMakeLists.txt"):
        text = without_comments(cmake.read_text())
        for room, body in re.findall(r"torchamp_add_test\((\w+)\s([^)]*)\)", text):
            for source in re.findall(r"[\w./]+_test\.cpp", body):
                names |= {f"{room}.{name}" for name in tests_of(cmake.parent / source)}
        names |= {"install." + name for name in re.findall(r"torchamp_add_install_test\(([\w${}]+)", text)}
        names |= set(re.findall(r"add_test\(NAME ([\w.${}]+)", text))
    names.discard("install.${name}")  # the body of torchamp_add_install_test()
    names |= {"example." + example.stem for example in (ROOT / "examples").glob("*.cpp")}
    return {re.sub(r"\$\{\w+\}", "*", name) for name in names}


def tests_of(source):
    text = without_comments(source.read_text())
    prefixes = {}
    for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)", text):
        prefixes.setdefault(suite, []).append(prefix)
    for kind, suite, name in re.findall(r"\bTEST(_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", text):
        if kind != "_P":
            yield f"{suite}.{name}"
        for prefix in prefixes.get(suite, []) if kind == "_P" else []:
            yield f"{prefix}/{suite}.{name}/*"


def known_differences():
    """What the rows of docs/differences.md say in their first column, without markup."""
    lines = (ROOT / "docs" / "differences.md").read_text().splitlines()
    return [line.split("|")[1].replace("`", "").replace("*", "").strip() for line in lines if line.startswith("| ")]


def expand(ids):
    """"A1-A3 L1" as A1, A2, A3, L1."""
    for word in ids.split():
        several = re.fullmatch(r"([A-Z]?)(\d+)-[A-Z]?(\d+)", word)
        if several:
            letter, first, last = several.groups()
            yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))
        else:
            yield word


def check(text, tests, differences):
    """The faults of a table, and how many rows of each kind are shown in which way."""
    faults, expected, seen, counts = [], {}, {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        cells = line.split("\t")
        if cells[0] == "ids":
            expected[cells[1]] = list(expand(cells[2]))
            continue
        if len(cells) != 4 or not all(cells):
            faults.append(f"line {number}: id, kind, what shows it and a description are wanted, tabs between them")
            continue
        key, kind, shown, _ = cells
        if key in seen.setdefault(kind, []):
            faults.append(f"line {number}: {kind} {key} is there twice")
        seen[kind].append(key)
        ways = set()
        for part in (part.strip() for part in shown.split(";")):
            way, _, rest = part.partition(":")
            ways.add(way if way in ("differences", "later") else "tested")
            if way == "differences":
                if not rest or not any(cell.startswith(rest) for cell in differences):
                    faults.append(f"line {number}: no row of docs/differences.md begins with '{rest}'")
            elif way == "later":
                if not rest.strip():
                    faults.append(f"line {number}: 'later' wants its reason")
            elif not any(fnmatch.fnmatchcase(name, part) or fnmatch.fnmatchcase(part, name) for name in tests):
                faults.append(f"line {number}: there is no test {part}")
        way = "tested, a part later" if {"tested", "later"} <= ways else min(ways, key=["tested", "differences", "later"].index)
        counts.setdefault(kind, {}).setdefault(way, []).append(key)
    for kind in expected.keys() | seen.keys():
        rows, wanted = seen.get(kind, []), expected.get(kind, [])
        faults += [f"{kind} {key} has no row" for key in wanted if key not in rows]
        faults += [f"{kind} {key} is in no list of ids" for key in rows if key not in wanted]
    return faults, counts


def self_check(text, tests, differences):
    rows = [line for line in text.splitlines() if line.count("\t") == 3]
    tested = next(row for row in rows if "differences:" not in row and "later:" not in row)
    differing = next(row for row in rows if "differences:" in row)
    for name, broken in {
        "a missing row": text.replace(tested + "\n", ""),
        "a row twice": text + tested + "\n",
        "an unknown test": text.replace(tested, re.sub(r"\.(\w+)(?=[\t;])", r".No\1", tested, count=1)),
        "an unknown difference": text.replace(differing, differing.replace("differences:", "differences:No ")),
        "an id of no list": text + "Z9\tsemantics\tlater: x\tx\n",
        "a row without description": text + tested.rpartition("\t")[0] + "\n",
    }.items():
        if broken == text or not check(broken, tests, differences)[0]:
            sys.exit(f"tools/reference_map.py: {name} goes unnoticed")


def main():
    text, tests, differences = TABLE.read_text(), known_tests(), known_differences()
    faults, counts = check(text, tests, differences)
    for fault in faults:
        print(f"tests/reference_map.tsv: {fault}", file=sys.stderr)
    if faults:
        sys.exit(1)
    if sys.argv[1:] == ["--self-check"]:
        self_check(text, tests, differences)
    for kind, ways in sorted(counts.items()):
        total = sum(len(keys) for keys in ways.values())
        print(f"{kind}: {total}: " + ", ".join(f"{len(keys)} {way}" for way, keys in sorted(ways.items())))


main()
