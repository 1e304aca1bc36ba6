"""Writes checkpoints of PyTorch versions that can no longer be installed: python make_old_checkpoints.py

Built from the formats' descriptions (torch/serialization.py of each time, pickletools, PKWARE APPNOTE), without PyTorch. All
hold the same values, which the tests state again; PyTorch 2.15 reads those of the folder old to these values, too.
"""
import io
import pathlib
import struct
import tarfile
import zipfile

HERE = pathlib.Path(__file__).parent / "old"


class Global:
    def __init__(self, module, name):
        self.text = f"c{module}\n{name}\n".encode()


class Call:
    def __init__(self, callee, *arguments, state=None):
        self.callee, self.arguments, self.state = callee, arguments, state


class Storage:
    """One persistent id; `view` is (key, first element, elements) of storages inside storages, before PyTorch 0.4."""

    def __init__(self, *parts):
        self.parts = ("storage",) + parts


def pickled(value, python2=False):
    """Protocol 2 without memo; Python 2 wrote its str as bytes (SHORT_BINSTRING)."""
    def put(item):
        if item is None:
            return b"N"
        if isinstance(item, bool):
            return b"\x88" if item else b"\x89"
        if isinstance(item, int):
            if 0 <= item < 256:
                return b"K" + struct.pack("<B", item)
            if 0 <= item < 65536:
                return b"M" + struct.pack("<H", item)
            if -2**31 <= item < 2**31:
                return b"J" + struct.pack("<i", item)
            data = item.to_bytes(item.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + struct.pack("<B", len(data)) + data
        if isinstance(item, float):
            return b"G" + struct.pack(">d", item)
        if isinstance(item, str):
            data = item.encode()
            if python2 and item.isascii() and len(data) < 256:
                return b"U" + struct.pack("<B", len(data)) + data
            return b"X" + struct.pack("<I", len(data)) + data
        if isinstance(item, tuple):
            inside = b"".join(map(put, item))
            return (b")", inside + b"\x85", inside + b"\x86", inside + b"\x87")[len(item)] if len(item) < 4 else b"(" + inside + b"t"
        if isinstance(item, list):
            return b"](" + b"".join(map(put, item)) + b"e"
        if isinstance(item, dict):
            return b"}(" + b"".join(put(key) + put(one) for key, one in item.items()) + b"u"
        if isinstance(item, Global):
            return item.text
        if isinstance(item, Call):
            built = put(item.callee) + put(item.arguments) + b"R"
            return built if item.state is None else built + put(item.state) + b"b"
        if isinstance(item, Storage):
            return put(item.parts) + b"Q"
        raise TypeError(type(item))
    return b"\x80\x02" + put(value) + b"."


ORDERED_DICT = Global("collections", "OrderedDict")
STORAGES = {  # key, as PyTorch made them of addresses: class, count, bytes
    "94081467264256": ("FloatStorage", 6, struct.pack("<6f", 0, 1, 2, 3, 4, 5)),
    "94081467264512": ("DoubleStorage", 3, struct.pack("<3d", 0.5, -1.5, 1e300)),
    "94081467264768": ("HalfStorage", 2, struct.pack("<2e", 1.5, -2.0)),
    "94081467265024": ("LongStorage", 1, struct.pack("<q", 2**40)),
    "94081467265280": ("BoolStorage", 3, b"\1\0\1"),
}
FLOATS, DOUBLES, HALVES, LONGS, BOOLS = STORAGES


def values(tensor, python2=False, storage_view=None):
    """What every file holds; `tensor`(key, offset, size, stride) makes a tensor of the file's time."""
    parameters = [("weight", tensor(FLOATS, 0, (2, 3), (3, 1))),
                  ("transposed", tensor(FLOATS, 0, (3, 2), (1, 3))),
                  ("view", storage_view or tensor(FLOATS, 2, (3,), (1,)))]
    metadata = {"_metadata": Call(ORDERED_DICT, [["", {"version": 1}]]) if python2 else Call(ORDERED_DICT)}
    if python2:  # its OrderedDict was a call with a list of lists; Python 3's is filled afterwards
        model = Call(ORDERED_DICT, [[key, value] for key, value in parameters], state=metadata)
    else:
        model = dict(parameters)
    return {"model": model, "double": tensor(DOUBLES, 0, (3,), (1,)), "half": tensor(HALVES, 1, (1,), (1,)),
            "long": tensor(LONGS, 0, (), ()), "bool": tensor(BOOLS, 0, (3,), (1,)),
            "epoch": 300, "seed": 2**40, "loss": 0.25, "name": "old", "text": "na\u00efve",
            "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}], "state": {0: None, 94081467264256: True}}


def of_today(key, offset, size, stride):
    kind, count, _ = STORAGES[key]
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), Storage(Global("torch", kind), key, "cpu", count),
                offset, size, stride, False, Call(ORDERED_DICT))


def of_legacy(key, offset, size, stride):
    """PyTorch 0.4 to 1.5: a storage's id has a sixth part, for views."""
    kind, count, _ = STORAGES[key]
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), Storage(Global("torch", kind), key, "cpu", count, None),
                offset, size, stride, False, Call(ORDERED_DICT))


def of_first(key, offset, size, stride, view=None):
    """PyTorch 0.2 and 0.3."""
    kind, count, _ = STORAGES[key]
    return Call(Global("torch._utils", "_rebuild_tensor"), Storage(Global("torch", kind), key, "cpu", count, view),
                offset, size, stride)


def write_zip(name, version, pickle, records=(), compression=zipfile.ZIP_STORED, top="archive"):
    with zipfile.ZipFile(HERE / name, "w", compression) as archive:
        def add(record, data):
            archive.writestr(zipfile.ZipInfo(f"{top}/{record}", (1980, 1, 1, 0, 0, 0)), data, compression)

        add("data.pkl", pickle)
        for record, data in records:
            add(record, data)
        places = []
        for key, (_, _, data) in STORAGES.items():
            places.append(archive.fp.tell() + 30 + len(f"{top}/data/{key}"))
            add(f"data/{key}", data)
        add("version", version)
        assert any(place % 4 for place in places), "some data should be unaligned"


def legacy(pickle, python2=False, little=True):
    info = {"protocol_version": 1001, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    parts = [pickled(0x1950A86A20F9469CFC6C), pickled(1001), pickled(info, python2), pickle,
             pickled(sorted(STORAGES), python2)]
    for key in sorted(STORAGES):
        _, count, data = STORAGES[key]
        parts.append(struct.pack("<q", count) + data)
    return b"".join(parts)


def write_tar(name):
    """PyTorch 0.1.1 to 0.1.9."""
    with tarfile.open(HERE / name, "w", format=tarfile.USTAR_FORMAT) as archive:
        for record, data in (("sys_info", pickled({"protocol_version": 1000, "little_endian": True})),
                             ("pickle", pickled({"epoch": 300})), ("tensors", struct.pack("<q", 0)),
                             ("storages", struct.pack("<q", 0))):
            entry = tarfile.TarInfo(record)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def main():
    (HERE / "refused").mkdir(parents=True, exist_ok=True)
    today = pickled(values(of_today))
    write_zip("zip_1_5.pt", "2\n", today)
    write_zip("zip_1_6.pt", "3\n", today)
    write_zip("zip_later.pt", "10\n", today, top="model_7",
              records=[("byteorder", "little"), (".data/serialization_id", "0" * 40), ("a_record_to_come", "text")])
    (HERE / "legacy_0_4.pt").write_bytes(legacy(pickled(values(of_legacy))))
    view = of_first(FLOATS, 0, (3,), (1,), view=("94081467300000", 2, 3))
    python2 = pickled(values(of_first, python2=True, storage_view=view), python2=True)
    (HERE / "python2_0_3.pt").write_bytes(legacy(python2, python2=True))

    write_zip("refused/big_endian.pt", "3\n", today, records=[("byteorder", "big")])
    write_zip("refused/compressed.pt", "3\n", today, compression=zipfile.ZIP_DEFLATED)
    (HERE / "legacy_big_endian.pt").write_bytes(legacy(pickled(values(of_legacy)), little=False))
    write_tar("refused/tar.pt")


main()
