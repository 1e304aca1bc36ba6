"""The rows of half_survey.py: a name that begins with a module of torch.nn, how to make it, and its inputs."""

import torch
from torch import nn
from torch.nn import functional as F


def not_timed():
    """Containers, what holds no arithmetic, and what LibTorch gives no float gradient or needs a first call."""
    return {"Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Container", "Identity",
            "Flatten", "Unflatten", "LazyLinear", "LazyConv1d", "LazyConv2d", "LazyConv3d", "LazyConvTranspose1d",
            "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d",
            "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "SyncBatchNorm", "RNNBase", "RNNCellBase",
            "TransformerDecoder", "TransformerEncoder", "CrossMapLRN2d", "LinearCrossEntropyLoss", "DataParallel"}


def module_cases(fixed):
    r, u = torch.randn, torch.rand
    torch.manual_seed(0)
    seq, img, vol = r(8, 32, 784), r(8, 32, 28, 28), r(4, 16, 12, 14, 14)
    img_cl = img.contiguous(memory_format=torch.channels_last)
    rows = r(512, 512)
    labels, classes = torch.randint(0, 512, (512,)), r(512, 512)
    signs = torch.randint(0, 2, (512, 512)) * 2 - 1
    words = torch.randint(0, 1000, (32, 64))
    text = r(35, 20, 128)
    fold = r(8, 16 * 9, 28 * 28)
    cases = {}

    def add(name, make, *inputs):
        cases[name] = (make, inputs)

    # Activations
    for name in ("ELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid PReLU ReLU ReLU6 RReLU SELU CELU GELU "
                 "Sigmoid SiLU Mish Softplus Softshrink Softsign Tanh Tanhshrink GLU").split():
        add(name, getattr(nn, name), rows)
    add("GELU tanh", lambda: nn.GELU("tanh"), rows)
    add("Threshold", lambda: nn.Threshold(0.1, 20), rows)
    for name in ("Softmin", "Softmax", "LogSoftmax"):
        add(name, lambda n=name: getattr(nn, n)(dim=1), rows)
        add(name + " dim 0", lambda n=name: getattr(nn, n)(dim=0), rows)
    add("Softmax2d", nn.Softmax2d, img)
    add("AdaptiveLogSoftmaxWithLoss", lambda: nn.AdaptiveLogSoftmaxWithLoss(128, 1000, [100, 500]), r(512, 128),
        torch.randint(0, 1000, (512,)))
    # Dropout
    for name, x in (("Dropout", rows), ("Dropout1d", seq), ("Dropout2d", img), ("Dropout3d", vol), ("AlphaDropout", rows),
                    ("FeatureAlphaDropout", img)):
        add(name, getattr(nn, name), x)
    # Padding
    for kind in "Reflection Replication Zero Constant Circular".split():
        for d, x in ((1, seq), (2, img), (3, vol)):
            value = (2, 0.5) if kind == "Constant" else (2,)
            add(f"{kind}Pad{d}d", lambda k=kind, d=d, v=value: getattr(nn, f"{k}Pad{d}d")(*v), x)
    # Convolutions
    for d, x in ((1, seq), (2, img), (3, vol)):
        c = x.shape[1]
        add(f"Conv{d}d", lambda d=d, c=c: getattr(nn, f"Conv{d}d")(c, 32, 3, padding=1), x)
        add(f"ConvTranspose{d}d", lambda d=d, c=c: getattr(nn, f"ConvTranspose{d}d")(c, 16, 4, 2, 1), x)
    add("Conv2d channels_last", lambda: nn.Conv2d(32, 32, 3, padding=1), img_cl)
    add("Conv2d 1x1 channels_last", lambda: nn.Conv2d(32, 64, 1), img_cl)
    add("Conv2d depthwise", lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), img)
    add("Conv2d groups", lambda: nn.Conv2d(32, 32, 3, padding=1, groups=4), img)
    # Pooling
    for d, x in ((1, seq), (2, img), (3, vol)):
        add(f"MaxPool{d}d", lambda d=d: getattr(nn, f"MaxPool{d}d")(2), x)
        add(f"AvgPool{d}d", lambda d=d: getattr(nn, f"AvgPool{d}d")(2), x)
        add(f"LPPool{d}d", lambda d=d: getattr(nn, f"LPPool{d}d")(2, 2), x)
        add(f"AdaptiveAvgPool{d}d", lambda d=d: getattr(nn, f"AdaptiveAvgPool{d}d")(7), x)
        add(f"AdaptiveMaxPool{d}d", lambda d=d: getattr(nn, f"AdaptiveMaxPool{d}d")(7), x)
        pooled, index = getattr(F, f"max_pool{d}d")(x, 2, return_indices=True)
        add(f"MaxUnpool{d}d", lambda d=d: getattr(nn, f"MaxUnpool{d}d")(2), pooled, index)
    add("MaxPool2d 3 by 2 channels_last", lambda: nn.MaxPool2d(3, 2, 1), img_cl)
    add("AvgPool2d channels_last", lambda: nn.AvgPool2d(2), img_cl)
    add("AdaptiveAvgPool2d 1", lambda: nn.AdaptiveAvgPool2d(1), img)
    add("FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(2, output_ratio=0.5), img)
    add("FractionalMaxPool3d", lambda: nn.FractionalMaxPool3d(2, output_ratio=0.5), vol)
    # Norms
    for d, x in ((1, seq), (2, img), (3, vol)):
        add(f"BatchNorm{d}d", lambda d=d, c=x.shape[1]: getattr(nn, f"BatchNorm{d}d")(c), x)
        add(f"InstanceNorm{d}d", lambda d=d, c=x.shape[1]: getattr(nn, f"InstanceNorm{d}d")(c, affine=True), x)
    add("BatchNorm2d channels_last", lambda: nn.BatchNorm2d(32), img_cl)
    add("GroupNorm", lambda: nn.GroupNorm(8, 32), img)
    add("GroupNorm channels_last", lambda: nn.GroupNorm(8, 32), img_cl)
    add("LayerNorm", lambda: nn.LayerNorm(512), rows)
    add("LayerNorm image", lambda: nn.LayerNorm([28, 28]), img)
    add("RMSNorm", lambda: nn.RMSNorm(512), rows)
    add("LocalResponseNorm", lambda: nn.LocalResponseNorm(5), img)
    # Linear
    add("Linear", lambda: nn.Linear(512, 512), rows)
    add("Linear 3-D", lambda: nn.Linear(512, 512), rows.view(8, 64, 512))
    add("Bilinear", lambda: nn.Bilinear(64, 64, 32), r(256, 64), r(256, 64))
    # Recurrent
    for name in ("RNN", "LSTM", "GRU"):
        add(name, lambda n=name: getattr(nn, n)(128, 256), text)
        add(name + " 2 layers both ways", lambda n=name: getattr(nn, n)(128, 128, 2, bidirectional=True), text)
        add(name + "Cell", lambda n=name: getattr(nn, n + "Cell")(256, 256), r(64, 256))
    add("LSTM proj", lambda: nn.LSTM(128, 256, proj_size=64), text)
    # Attention
    heads = r(32, 20, 256)
    add("MultiheadAttention", lambda: _SelfAttention(256, 8), heads)
    add("MultiheadAttention mask", lambda: _SelfAttention(256, 8, True), heads)
    add("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(256, 8, 512, batch_first=True), heads)
    add("TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(256, 8, 512, batch_first=True), heads, heads.clone())
    add("Transformer", lambda: nn.Transformer(128, 4, 1, 1, 256, batch_first=True), r(8, 20, 128), r(8, 16, 128))
    # Embeddings
    add("Embedding", lambda: nn.Embedding(1000, 256), words)
    for mode in ("sum", "mean", "max"):
        add("EmbeddingBag " + mode, lambda m=mode: nn.EmbeddingBag(1000, 256, mode=m), words)
    # Resampling and rearranging
    add("Upsample nearest", lambda: nn.Upsample(scale_factor=2), img)
    add("Upsample linear", lambda: nn.Upsample(scale_factor=2, mode="linear"), seq)
    add("Upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), img)
    add("Upsample bilinear channels_last", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), img_cl)
    add("Upsample bicubic", lambda: nn.Upsample(scale_factor=2, mode="bicubic"), img)
    add("Upsample trilinear", lambda: nn.Upsample(scale_factor=2, mode="trilinear"), vol)
    add("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), img)
    add("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), img)
    add("PixelShuffle", lambda: nn.PixelShuffle(2), img)
    add("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), img)
    add("ChannelShuffle", lambda: nn.ChannelShuffle(4), img)
    add("Unfold", lambda: nn.Unfold(3, padding=1), img)
    add("Fold", lambda: nn.Fold((28, 28), 3, padding=1), fold)
    add("ZeroPad1d", lambda: nn.ZeroPad1d(2), seq)
    # Distances
    add("CosineSimilarity", lambda: nn.CosineSimilarity(dim=1), rows, r(512, 512))
    add("PairwiseDistance", nn.PairwiseDistance, rows, r(512, 512))
    # Losses
    other = fixed(r(512, 512))
    for name in "L1Loss MSELoss SmoothL1Loss HuberLoss".split():
        add(name, getattr(nn, name), rows, other)
    add("BCELoss", nn.BCELoss, u(512, 512) * 0.9 + 0.05, fixed(u(512, 512)))
    add("BCEWithLogitsLoss", nn.BCEWithLogitsLoss, rows, fixed(u(512, 512)))
    add("KLDivLoss", lambda: nn.KLDivLoss(reduction="batchmean"), classes.log_softmax(1), fixed(r(512, 512).softmax(1)))
    add("CrossEntropyLoss", nn.CrossEntropyLoss, classes, labels)
    add("CrossEntropyLoss smooth", lambda: nn.CrossEntropyLoss(label_smoothing=0.1), classes, labels)
    add("CrossEntropyLoss 2-D", nn.CrossEntropyLoss, img, torch.randint(0, 32, (8, 28, 28)))
    add("NLLLoss", nn.NLLLoss, classes.log_softmax(1), labels)
    add("NLLLoss2d", nn.NLLLoss2d, img.log_softmax(1), torch.randint(0, 32, (8, 28, 28)))
    add("PoissonNLLLoss", nn.PoissonNLLLoss, rows, fixed(u(512, 512)))
    add("GaussianNLLLoss", nn.GaussianNLLLoss, rows, other, u(512, 512) + 0.1)
    add("CTCLoss", nn.CTCLoss, r(50, 16, 20).log_softmax(2), torch.randint(1, 20, (16, 20)), torch.full((16,), 50),
        torch.full((16,), 20))
    add("HingeEmbeddingLoss", nn.HingeEmbeddingLoss, rows, signs)
    add("SoftMarginLoss", nn.SoftMarginLoss, rows, signs)
    add("MarginRankingLoss", nn.MarginRankingLoss, r(20000), r(20000), torch.randint(0, 2, (20000,)) * 2 - 1)
    add("CosineEmbeddingLoss", nn.CosineEmbeddingLoss, rows, r(512, 512), torch.randint(0, 2, (512,)) * 2 - 1)
    add("TripletMarginLoss", nn.TripletMarginLoss, rows, r(512, 512), r(512, 512))
    add("TripletMarginWithDistanceLoss", nn.TripletMarginWithDistanceLoss, rows, r(512, 512), r(512, 512))
    add("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, rows, fixed(torch.randint(0, 2, (512, 512)).float()))
    add("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, r(64, 64), torch.cat(
        [torch.randint(0, 64, (64, 8)), torch.full((64, 56), -1)], 1))
    add("MultiMarginLoss", nn.MultiMarginLoss, classes, labels)
    return cases


class _SelfAttention(nn.MultiheadAttention):
    def __init__(self, width, heads, has_mask=False):
        super().__init__(width, heads, batch_first=True)
        self.mask = nn.Buffer(torch.ones(20, 20).triu(1).bool()) if has_mask else None

    def forward(self, x):  # pylint: disable=arguments-differ
        return super().forward(x, x, x, need_weights=False, attn_mask=self.mask)[0]


def op_cases(fixed):
    r, u = torch.randn, torch.rand
    x, y, img, vol = r(512, 512), r(512, 512), r(8, 32, 28, 28), r(4, 16, 12, 14, 14)
    positive, vector = u(512, 512) + 0.1, r(512)
    batch_a, batch_b = r(8, 64, 64), r(8, 64, 64)
    index, columns = torch.randint(0, 512, (512,)), torch.randint(0, 512, (512, 512))
    heads = [r(4, 8, 64, 32) for _ in range(3)]
    cases = {}

    def add(name, function, *inputs):
        cases["op " + name] = (lambda: function, inputs)

    for name, function, *inputs in (
            ("mm", torch.mm, x, y), ("addmm", torch.addmm, vector, x, y), ("bmm", torch.bmm, batch_a, batch_b),
            ("baddbmm", torch.baddbmm, r(8, 64, 64), batch_a, batch_b), ("addbmm", torch.addbmm, r(64, 64), batch_a, batch_b),
            ("mv", torch.mv, x, vector), ("dot", torch.dot, r(20000), r(20000)), ("outer", torch.outer, vector, r(512)),
            ("addr", torch.addr, x, vector, r(512)), ("matmul 4-D", torch.matmul, heads[0], heads[1].transpose(-1, -2)),
            ("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), batch_a, batch_b),
            ("chain_matmul", lambda a, b: torch.linalg.multi_dot([a, b, a]), x, y)):
        add(name, function, *inputs)
    add("attention", F.scaled_dot_product_attention, *heads)
    add("attention causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *heads)
    add("attention mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *heads, fixed(r(64, 64)))
    add("attention dropout", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), *heads)
    for name in "sum mean var std prod amax amin logsumexp cumsum norm argmax".split():
        function = getattr(torch, name)
        if name not in ("cumsum", "logsumexp"):
            add(name, function, x)
        if name not in ("prod", "norm", "argmax"):
            add(name + " dim 0", lambda a, f=function: f(a, 0), x)
        if name != "argmax":
            add(name + " dim 1", (lambda a: torch.norm(a, dim=1)) if name == "norm" else (lambda a, f=function: f(a, 1)), x)
    for order in (1, 2, 3, float("inf")):
        add(f"vector_norm {order}", lambda a, o=order: torch.linalg.vector_norm(a, o), x)
        add(f"vector_norm {order} dim 1", lambda a, o=order: torch.linalg.vector_norm(a, o, 1), x)
        add(f"vector_norm {order} dim 0", lambda a, o=order: torch.linalg.vector_norm(a, o, 0), x)
    for name in "max min median cummax sort".split():
        add(name + " dim 1", lambda a, f=getattr(torch, name): f(a, 1)[0], x)
    add("max", torch.max, x)
    add("aminmax", torch.aminmax, x)
    add("var_mean dim 1", lambda a: torch.var_mean(a, 1), x)
    add("cumprod", lambda a: torch.cumprod(a, 1), positive)
    add("logcumsumexp", lambda a: torch.logcumsumexp(a, 1), x)
    add("nansum", torch.nansum, x)
    add("quantile", lambda a: torch.quantile(a, 0.5, dim=1), x)
    add("kthvalue", lambda a: torch.kthvalue(a, 5, 1)[0], x)
    add("topk", lambda a: torch.topk(a, 5, 1)[0], x)
    add("normalize", F.normalize, x)
    add("renorm", lambda a: torch.renorm(a, 2, 0, 1.0), x)
    add("cdist", torch.cdist, r(64, 64), r(64, 64))
    add("cdist 1", lambda a, b: torch.cdist(a, b, 1.0), r(64, 64), r(64, 64))
    add("pdist", torch.pdist, r(64, 64))
    for name in ("exp log sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf abs neg square sign floor round ceil expm1 log1p log2 "
                 "exp2 atan asinh sinc logit frac trunc lgamma digamma erfinv i0").split():
        add(name, getattr(torch, name), positive * (0.8 if name in ("logit", "erfinv") else 1))
    for name in "add sub mul div pow maximum minimum fmod remainder atan2 hypot logaddexp fmax xlogy".split():
        add(name, getattr(torch, name), positive, u(512, 512) + 0.1)
    add("add bias", torch.add, x, vector)
    add("mul column", lambda a, b: a * b, x, r(512, 1))
    add("mul scalar", lambda a: a * 0.5, x)
    add("pow 2", lambda a: a**2, x)
    add("pow 2.5", lambda a: a**2.5, positive)
    add("addcmul", torch.addcmul, x, y, r(512, 512))
    add("addcdiv", torch.addcdiv, x, y, positive)
    add("lerp", lambda a, b: torch.lerp(a, b, 0.3), x, y)
    add("clamp", lambda a: torch.clamp(a, -1, 1), x)
    add("where", lambda a, b: torch.where(a > 0, a, b), x, y)
    add("masked_fill", lambda a: a.masked_fill(a > 0, 0.0), x)
    add("masked_select", lambda a: a[a > 0], x)
    add("nan_to_num", torch.nan_to_num, x)
    add("cat", lambda a, b: torch.cat([a, b], 1), x, y)
    add("stack", lambda a, b: torch.stack([a, b], 1), x, y)
    add("transpose copy", lambda a: a.t().contiguous(), x)
    add("permute copy", lambda a: a.permute(0, 2, 3, 1).contiguous(), img)
    add("flip", lambda a: torch.flip(a, [1]), x)
    add("flip 0", lambda a: torch.flip(a, [0]), x)
    add("roll", lambda a: torch.roll(a, 5, 1), x)
    add("tril", torch.tril, x)
    add("diagonal", torch.diagonal, x)
    add("repeat", lambda a: a.repeat(2, 2), x)
    add("repeat_interleave", lambda a: torch.repeat_interleave(a, 2, 0), x)
    add("gather", lambda a: torch.gather(a, 1, columns), x)
    add("index_select", lambda a: torch.index_select(a, 0, index), x)
    add("index", lambda a: a[index], x)
    add("index_add", lambda a, b: torch.index_add(a, 0, index, b), x, y)
    add("index_put", lambda a, b: a.index_put((index,), b), x, y)
    add("scatter", lambda a, b: torch.scatter(a, 1, columns, b), x, fixed(y))
    add("scatter_add", lambda a, b: torch.scatter_add(a, 1, columns, b), x, y)
    add("scatter_reduce", lambda a, b: torch.scatter_reduce(a, 1, columns, b, "amax"), x, y)
    add("take_along_dim", lambda a: torch.take_along_dim(a, columns, 1), x)
    add("one_hot matmul", lambda a: F.one_hot(index, 512).to(a.dtype) @ a, x)
    add("grid_sample", lambda a, g: F.grid_sample(a, g, align_corners=False), img, u(8, 28, 28, 2) * 2 - 1)
    add("grid_sample nearest", lambda a, g: F.grid_sample(a, g, "nearest", align_corners=False), img, u(8, 28, 28, 2) * 2 - 1)
    add("grid_sample bicubic", lambda a, g: F.grid_sample(a, g, "bicubic", align_corners=False), img, u(8, 28, 28, 2) * 2 - 1)
    add("grid_sample 3-D", lambda a, g: F.grid_sample(a, g, align_corners=False), vol, u(4, 12, 14, 14, 3) * 2 - 1)
    add("affine_grid", lambda a: F.affine_grid(a, [8, 3, 28, 28], align_corners=False), r(8, 2, 3))
    add("interpolate area", lambda a: F.interpolate(a, scale_factor=0.5, mode="area"), img)
    add("interpolate bilinear antialias", lambda a: F.interpolate(a, scale_factor=0.5, mode="bilinear", antialias=True), img)
    add("gumbel_softmax", F.gumbel_softmax, x)
    add("trace", torch.trace, x)
    add("logdet", torch.logdet, torch.eye(64) * 2 + r(64, 64) * 0.05)
    add("inverse", torch.inverse, torch.eye(64) * 2 + r(64, 64) * 0.05)
    add("solve", torch.linalg.solve, torch.eye(64) * 2 + r(64, 64) * 0.05, r(64, 8))
    add("cross", lambda a, b: torch.linalg.cross(a, b), r(4096, 3), r(4096, 3))
    add("kron", torch.kron, r(16, 16), r(16, 16))
    add("glu 0", lambda a: F.glu(a, 0), x)
    return cases
