"""Writes autocast_dtypes.json: the result dtype of ops inside a CPU autocast region.

Run with Python PyTorch: python make_autocast_golden.py. tests/amp/autocast_ops_test.cpp runs the same ops.
"""

import json
import pathlib

import torch
import torch.nn.functional as F


def ops():
    x = torch.full((4, 4), 0.5)
    low = torch.mm(x, x)  # the region's dtype
    weight = torch.ones(4, 4, requires_grad=True)
    labels = torch.zeros(4, dtype=torch.long)
    image = torch.full((1, 2, 4, 4), 0.5)
    signal = torch.full((64,), 0.5)
    double = x.double()
    return {
        "mm": lambda: torch.mm(x, x),
        "bmm": lambda: torch.bmm(x[None], x[None]),
        "linear": lambda: F.linear(x, weight),
        "conv2d": lambda: F.conv2d(image, torch.ones(3, 2, 3, 3)),
        "einsum": lambda: torch.einsum("ij,jk->ik", x, x),
        "matmul": lambda: torch.matmul(x, x),
        "softmax": lambda: torch.softmax(low, 1),
        "log_softmax": lambda: torch.log_softmax(low, 1),
        "layer_norm": lambda: F.layer_norm(low, [4]),
        "sum": lambda: low.sum(),
        "mean": lambda: low.mean(),
        "pow": lambda: low.pow(2),
        "exp": lambda: low.exp(),
        "norm": lambda: low.norm(),
        "var": lambda: low.var(),
        "cumsum": lambda: low.cumsum(0),
        "rsqrt": lambda: low.rsqrt(),
        "gelu": lambda: F.gelu(low),
        "add_number": lambda: low + 1.0,
        "interpolate": lambda: F.interpolate(image.to(low.dtype), scale_factor=2.0),
        "cross_entropy": lambda: F.cross_entropy(low, labels),
        "nll_loss": lambda: F.nll_loss(low, labels),
        "mse_loss": lambda: F.mse_loss(low, low),
        "l1_loss": lambda: F.l1_loss(low, low),
        "huber_loss": lambda: F.huber_loss(low, low),
        "smooth_l1_loss": lambda: F.smooth_l1_loss(low, low),
        "kl_div": lambda: F.kl_div(low, low, reduction="sum"),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(torch.sigmoid(low), torch.ones_like(low)),
        "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(low, torch.ones_like(low)),
        "cross_entropy_of_probabilities": lambda: F.cross_entropy(low, torch.softmax(low, 1)),
        "cross_entropy_smoothed": lambda: F.cross_entropy(low, labels, label_smoothing=0.1),
        "cosine_similarity": lambda: F.cosine_similarity(low, low),
        "cosine_embedding_loss": lambda: F.cosine_embedding_loss(low, low, torch.ones(4)),
        "hinge_embedding_loss": lambda: F.hinge_embedding_loss(low, torch.ones_like(low)),
        "ctc_loss": lambda: F.ctc_loss(
            torch.log_softmax(low, 1)[:, None], torch.ones(1, 2).long(), torch.tensor([4]), torch.tensor([2])
        ),
        "prod": lambda: low.prod(),
        "cdist": lambda: torch.cdist(low, low),
        "add_float": lambda: low + x,
        "cat_float": lambda: torch.cat([low, x]),
        "cat_low": lambda: torch.cat([low, low]),
        "stack_float": lambda: torch.stack([low, x]),
        "where_float": lambda: torch.where(x > 0, low, x),
        "bilinear": lambda: F.bilinear(x, x, torch.ones(3, 4, 4)),
        "dot": lambda: torch.dot(x[0], x[0]),
        "mv": lambda: torch.mv(x, x[0]),
        "outer": lambda: torch.outer(x[0], x[0]),
        "embedding": lambda: F.embedding(labels, x),
        "embedding_bag": lambda: F.embedding_bag(labels[None], x),
        "grid_sample": lambda: F.grid_sample(image.to(low.dtype), torch.zeros(1, 2, 2, 2), align_corners=False),
        "inverse": lambda: torch.linalg.inv(low + torch.eye(4, dtype=low.dtype)),
        "svd": lambda: torch.svd(low)[1],
        "log": lambda: low.log(),
        "rfft": lambda: torch.fft.rfft(signal.to(low.dtype)),
        "stft": lambda: torch.stft(signal.to(low.dtype), 16, window=torch.ones(16), return_complex=True),
        "mm_double": lambda: torch.mm(double, double),
        "mm_long": lambda: torch.mm(torch.ones(2, 2).long(), torch.ones(2, 2).long()),
        "bool_plus_bool": lambda: torch.ones(2).bool() + torch.ones(2).bool(),
        "bool_times_float": lambda: torch.ones(2).bool() * torch.ones(2),
        "mm_complex": lambda: torch.mm(torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 2, dtype=torch.complex64)),
    }


def main():
    result = {}
    for name in ("bfloat16", "float16"):
        with torch.autocast("cpu", getattr(torch, name)):
            result[name] = {op: str(f().dtype).removeprefix("torch.") for op, f in ops().items()}
    out = {"torch": torch.__version__, "dtypes": result}
    path = pathlib.Path(__file__).with_name("autocast_dtypes.json")
    path.write_text(json.dumps(out, indent=1) + "\n")


main()
