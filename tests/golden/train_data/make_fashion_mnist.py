"""Writes fashion_mnist.txt: what numpy finds in Debian's dataset-fashion-mnist.

Package version 0.0~git20200523.55506a9-1; any numpy serves, all sums are of integers.
Run: python3 make_fashion_mnist.py > fashion_mnist.txt
"""

import gzip

import numpy

FOLDER = "/usr/share/datasets/fashion-mnist"

for split in ("train", "t10k"):
    with gzip.open(f"{FOLDER}/{split}-images-idx3-ubyte.gz") as file:
        pixels = numpy.frombuffer(file.read(), numpy.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(f"{FOLDER}/{split}-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
    weights = numpy.arange(1, len(labels) + 1, dtype=numpy.uint64)
    print(split, len(pixels))
    print("pixel_sum", pixels.sum(dtype=numpy.uint64))
    print("label_sum", labels.sum(dtype=numpy.uint64))
    print("weighted_label_sum", (labels * weights).sum())  # depends on their order
    print("weighted_pixel_sum", (pixels.reshape(len(pixels), -1).sum(1, dtype=numpy.uint64) * weights).sum())
    print("row_sum_of_image_17", *pixels[17].sum(1))
    print("mean_and_std", *("%.6f" % x for x in ((pixels / 255).mean(), (pixels / 255).std())))
