#!/usr/bin/env python3
"""Seeds for the fuzz targets out of the golden files: make_seeds.py TARGET FOLDER

TARGET is fuzz_pt or fuzz_safetensors; the first byte of a seed says how the target reads the rest.
"""
import pathlib
import pickle
import sys
import zipfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "checkpoint"
FOLDERS = ("1.13.1", "2.15.0", "old")  # the others differ little
MOST_BYTES = 4096  # of a seed; larger ones slow every run down


def zip_seeds(path, data):
    yield b"\0" + data
    yield b"\1" + data
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("/data.pkl"):
                yield b"\2" + archive.read(name)


def legacy_seeds(data):
    yield b"\0" + data
    third_end = data.find(b"uu.")  # of the third pickle, which fuzz_pt writes itself
    if third_end >= 0:
        yield b"\3" + data[third_end + 3:]


def pt_seeds():
    for path in sorted(path for folder in FOLDERS for path in (GOLDEN / folder).rglob("*.pt")):
        data = path.read_bytes()
        yield from zip_seeds(path, data) if zipfile.is_zipfile(path) else legacy_seeds(data)
    yield b"\2" + pickle.dumps({"epoch": 1, "checkpoint_manager": {"run_id": "0123456789abcdef" * 2}}, 2)


def safetensors_seeds():
    for path in sorted(GOLDEN.rglob("*.safetensors")):
        data = path.read_bytes()
        yield b"\0" + data
        length = int.from_bytes(data[:8], "little")
        yield b"\1" + data[8:8 + length]
    # Where no file is at hand: one tensor of each of some dtypes, and metadata.
    for dtype, size in (("F32", 4), ("BF16", 2), ("F8_E4M3", 1), ("I64", 8), ("BOOL", 1), ("U16", 2)):
        yield (b'\1{"__metadata__":{"format":"pt"},"a":{"dtype":"%s","shape":[2,3],"data_offsets":[0,%d]},'
               b'"b":{"dtype":"F32","shape":[],"data_offsets":[%d,%d]}}'
               % (dtype.encode(), 6 * size, 6 * size, 6 * size + 4))


def main():
    target, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {"fuzz_pt": pt_seeds, "fuzz_safetensors": safetensors_seeds}[target]
    for number, seed in enumerate(dict.fromkeys(seed for seed in seeds() if len(seed) <= MOST_BYTES)):
        (folder / f"{number:04}").write_bytes(seed)


main()
