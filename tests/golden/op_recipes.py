"""How each op of the autocast lists is called: real arguments, described so that Python and C++ (tests/support/op_call.h)
build the same ones.

RECIPES maps "name.overload" (or "name.overload/variant") to the positional arguments of the schema; a last dict holds
arguments by name. A string that starts with @ is a tensor, "@kind:shape":
  @u:2x3   uniform in [-1, 1)            @p:2x3   in (0, 1)         @n:2x3   -1 or 1
  @g:4x4   far from singular             @s:4x4   symmetric positive definite
  @v:2=0,1 these int64 values            @w:2=0,1 these int32 values  @k:2=0,1 these booleans
The first five are floating, take the dtype of the case and require a gradient, unless ! follows the shape. A shape of
named dimensions ends with {N,C}. A string that starts with # is a dtype.
"""

import torch

from recipe import uniform

_CONV_TAIL = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
_RNN = ["@u:2x3", "@u:2x4", "@u:4x3", "@u:4x4", "@u:4", "@u:4"]
_IMAGE, _GRID = "@u:1x2x4x4", "@u:1x3x3x2"
_VOLUME = "@u:1x2x4x4x4"
_PAIR = ["@u:4x3", "@u:4x3"]
_LABELS = "@v:4=0,2,1,2"
_FFT1, _FFT2 = ["@u:8"], ["@u:4x4"]


# What the running LibTorch registers on AutocastCPU; a name that it lacks is left out.
CPU = {
    "_addmm_activation": ["@u:2x4", "@u:2x3", "@u:3x4"],
    "_convolution.deprecated": [_IMAGE, "@u:3x2x3x3", "@u:3", *_CONV_TAIL, False, False, True],
    "_grid_sampler_2d_cpu_fallback": [_IMAGE, _GRID, 0, 0, False],
    "_lu_with_info": ["@g:4x4"],
    "_native_multi_head_attention": [*["@u:2x3x8"] * 3, 8, 2, "@u:24x8", "@u:24", "@u:8x8", "@u:8"],
    "adaptive_avg_pool3d": [_VOLUME, [2, 2, 2]],
    "adaptive_max_pool3d": [_VOLUME, [2, 2, 2]],
    "addbmm": ["@u:2x4", "@u:5x2x3", "@u:5x3x4"],
    "addmm": ["@u:2x4", "@u:2x3", "@u:3x4"],
    "avg_pool3d": [_VOLUME, [2, 2, 2]],
    "baddbmm": ["@u:5x2x4", "@u:5x2x3", "@u:5x3x4"],
    "binary_cross_entropy": ["@p:4x3", "@p:4x3!"],
    "binary_cross_entropy_with_logits": ["@u:4x3", "@p:4x3!"],
    "binary_cross_entropy_with_logits/weights": ["@u:4x3", "@p:4x3!", "@p:3!", "@p:3!", 2],
    "bmm": ["@u:5x2x3", "@u:5x3x4"],
    "cat": [["@u:2x3", "@u:4x3"]],
    "cat/three": [["@u:2x3", "@u:2x3", "@u:2x3!"], 1],
    "cdist": ["@u:4x3", "@u:5x3"],
    "cholesky": ["@s:4x4"],
    "cholesky_inverse": ["@s:4x4"],
    "cholesky_solve": ["@u:4x2", "@s:4x4"],
    "conv1d": ["@u:1x2x6", "@u:3x2x3", "@u:3"],
    "conv1d.padding": ["@u:1x2x6", "@u:3x2x3", "@u:3", [1], "same"],
    "conv2d": [_IMAGE, "@u:3x2x3x3", "@u:3"],
    "conv2d/no_bias": [_IMAGE, "@u:3x2x3x3"],
    "conv2d.padding": [_IMAGE, "@u:3x2x3x3", "@u:3", [1, 1], "same"],
    "conv3d": [_VOLUME, "@u:3x2x3x3x3", "@u:3"],
    "conv3d.padding": [_VOLUME, "@u:3x2x3x3x3", "@u:3", [1, 1, 1], "same"],
    "conv_tbc": ["@u:6x1x2", "@u:3x2x4", "@u:4"],
    "conv_transpose1d": ["@u:1x2x6", "@u:2x3x3", "@u:3"],
    "conv_transpose2d.input": [_IMAGE, "@u:2x3x3x3", "@u:3"],
    "conv_transpose3d.input": [_VOLUME, "@u:2x3x3x3x3", "@u:3"],
    "cosine_embedding_loss": [*_PAIR, "@n:4!"],
    "cross_entropy_loss": ["@u:4x3", _LABELS],
    "cross_entropy_loss/smoothed": ["@u:4x3", _LABELS, "@p:3!", {"label_smoothing": 0.1}],
    "cross_entropy_loss/probabilities": ["@u:4x3", "@p:4x3"],
    "ctc_loss.IntList": ["@u:8x2x5", "@v:2x3=1,2,3,4,3,2", [8, 8], [3, 3]],
    "ctc_loss.Tensor": ["@u:8x2x5", "@v:2x3=1,2,3,4,3,2", "@v:2=8,8", "@v:2=3,3"],
    "fake_quantize_per_tensor_affine": ["@u:4x3", 0.125, 0, -128, 127],
    "fft_fft": _FFT1,
    "fft_fft2": _FFT2,
    "fft_fftn": _FFT2,
    "fft_hfft": _FFT1,
    "fft_ifft": _FFT1,
    "fft_ifft2": _FFT2,
    "fft_ifftn": _FFT2,
    "fft_ihfft": _FFT1,
    "fft_irfft": _FFT1,
    "fft_irfft2": _FFT2,
    "fft_irfftn": _FFT2,
    "fft_rfft": _FFT1,
    "fft_rfft2": _FFT2,
    "fft_rfftn": _FFT2,
    "fractional_max_pool2d": ["@u:1x2x8x8", [2, 2], [4, 4], "@p:1x2x2!"],
    "fractional_max_pool3d": ["@u:1x2x8x8x8", [2, 2, 2], [4, 4, 4], "@p:1x2x3!"],
    "geqrf": ["@u:4x3"],
    "grid_sampler": [_IMAGE, _GRID, 0, 0, False],
    "grid_sampler_2d": [_IMAGE, _GRID, 0, 0, False],
    "grid_sampler_3d": [_VOLUME, "@u:1x2x2x2x3", 0, 0, False],
    "hinge_embedding_loss": ["@u:4x3", "@n:4x3!"],
    "huber_loss": _PAIR,
    "index_copy": ["@u:4x3", 0, "@v:2=0,2", "@u:2x3"],
    "index_copy.dimname": ["@u:4x3{N,C}", "N", "@v:2=0,2", "@u:2x3{N,C}"],
    "inverse": ["@g:4x4"],
    "kl_div": _PAIR,
    "kl_div/log_target": [*_PAIR, 2, {"log_target": True}],
    "l1_loss": _PAIR,
    "linalg_cholesky": ["@s:4x4"],
    "linalg_cholesky_ex": ["@s:4x4"],
    "linalg_cond": ["@g:4x4"],
    "linalg_cond/one": ["@g:4x4", 1],
    "linalg_cond.p_str": ["@g:4x4", "fro"],
    "linalg_eig": ["@g:4x4"],
    "linalg_eigh": ["@s:4x4"],
    "linalg_eigvals": ["@g:4x4"],
    "linalg_eigvalsh": ["@s:4x4"],
    "linalg_householder_product": ["@u:4x3", "@u:3"],
    "linalg_inv": ["@g:4x4"],
    "linalg_inv_ex": ["@g:4x4"],
    "linalg_lstsq": ["@g:4x4", "@u:4x2"],
    "linalg_matrix_rank": ["@g:4x4", 0.125],
    "linalg_matrix_rank.atol_rtol_float": ["@g:4x4", {"atol": 0.125, "rtol": 0.125}],
    "linalg_matrix_rank.atol_rtol_tensor": ["@g:4x4", {"atol": "@p:!", "rtol": "@p:!"}],
    "linalg_matrix_rank.tol_tensor": ["@g:4x4", "@p:!"],
    "linalg_matrix_sqrth": ["@s:4x4"],
    "linalg_qr": ["@g:4x4"],
    "linalg_solve": ["@g:4x4", "@u:4x2"],
    "linalg_svd": ["@g:4x4"],
    "linalg_svdvals": ["@g:4x4"],
    "linalg_tensorinv": ["@u:2x3x6"],
    "linalg_tensorsolve": ["@u:2x3x6", "@u:2x3"],
    "linalg_vecdot": _PAIR,
    "linear": ["@u:4x3", "@u:2x3", "@u:2"],
    "linear/no_bias": ["@u:4x3", "@u:2x3"],
    "linear/three_dimensions": ["@u:2x4x3", "@u:2x3", "@u:2"],
    "lu_solve": ["@u:4x2", "@g:4x4", "@w:4=1,2,3,4"],
    "margin_ranking_loss": ["@u:4", "@u:4", "@n:4!"],
    "matmul": ["@u:2x3", "@u:3x4"],
    "matmul/batched": ["@u:5x2x3", "@u:3x4"],
    "matmul/vectors": ["@u:3", "@u:3"],
    "max_pool3d": [_VOLUME, [2, 2, 2]],
    "max_unpool2d": ["@u:1x1x2x2", "@v:1x1x2x2=0,3,9,11", [4, 4]],
    "max_unpool3d": ["@u:1x1x1x2x2", "@v:1x1x1x2x2=0,3,9,11", [2, 4, 4], [2, 2, 2], [0, 0, 0]],
    "mkldnn_rnn_layer": ["@u:3x2x4", "@u:20x4", "@u:20x5", "@u:20", "@u:20", "@u:1x2x5", "@u:1x2x5", False, [], 2, 5, 1,
                         True, False, False, True],
    "mm": ["@u:2x3", "@u:3x4"],
    "mse_loss": _PAIR,
    "multi_margin_loss": ["@u:4x3", _LABELS],
    "multilabel_margin_loss": ["@u:2x4", "@v:2x4=3,0,-1,1,0,1,-1,2"],
    "multilabel_margin_loss_forward": ["@u:2x4", "@v:2x4=3,0,-1,1,0,1,-1,2", 1],
    "nanquantile": ["@u:8", "@p:2!"],
    "nanquantile.scalar": ["@u:8", 0.25],
    "nll_loss": ["@u:4x3", _LABELS],
    "nll_loss/weight": ["@u:4x3", _LABELS, "@p:3!"],
    "nll_loss2d": ["@u:1x3x2x2", "@v:1x2x2=0,2,1,2"],
    "orgqr": ["@u:4x3", "@u:3"],
    "ormqr": ["@u:4x3", "@u:3", "@u:4x2"],
    "pinverse": ["@g:4x4"],
    "poisson_nll_loss": ["@u:4x3", "@p:4x3!", True, False, 1e-8, 1],
    "polar": ["@p:4x3", "@u:4x3"],
    "prelu": ["@u:4x3", "@p:3"],
    "prod": ["@u:4x3"],
    "prod/dtype": ["@u:4x3", {"dtype": "#float64"}],
    "prod.dim_int": ["@u:4x3", 1],
    "prod.dim_Dimname": ["@u:4x3{N,C}", "C"],
    "qr": ["@g:4x4"],
    "quantile": ["@u:8", "@p:2!"],
    "quantile.scalar": ["@u:8", 0.25],
    "reflection_pad1d": ["@u:1x2x6", [1, 2]],
    "reflection_pad2d": [_IMAGE, [1, 2, 2, 1]],
    "replication_pad1d": ["@u:1x2x6", [1, 2]],
    "replication_pad2d": [_IMAGE, [1, 2, 2, 1]],
    "replication_pad3d": [_VOLUME, [1, 2, 2, 1, 1, 1]],
    "scaled_dot_product_attention": [*["@u:1x2x4x8"] * 3],
    "scaled_dot_product_attention/causal": [*["@u:1x2x4x8"] * 3, None, 0.0, True],
    "scaled_dot_product_attention/mask": [*["@u:1x2x4x8"] * 3, "@u:4x4"],
    "smooth_l1_loss": _PAIR,
    "soft_margin_loss": ["@u:4x3", "@n:4x3!"],
    "stack": [["@u:2x3", "@u:2x3"]],
    "stft": ["@u:64", 16, None, None, "@p:16!", False, True, True],
    "stft.center": ["@u:64", 16, None, None, "@p:16!", True, "reflect", False, True, True],
    "svd": ["@g:4x4"],
    "trace": ["@u:4x4"],
    "triangular_solve": ["@u:4x2", "@g:4x4"],
    "triplet_margin_loss": [*["@u:4x3"] * 3],
    "view_as_complex": ["@u:4x2"],
}

# On AutocastCUDA's list alone; on a CPU they run in the types of their arguments.
CUDA = {
    "_convolution": [_IMAGE, "@u:3x2x3x3", "@u:3", *_CONV_TAIL, False, False, True, True],
    "_upsample_bicubic2d_aa": [_IMAGE, [8, 8], False],
    "_upsample_bilinear2d_aa": [_IMAGE, [8, 8], False],
    "_upsample_nearest_exact1d": ["@u:1x2x6", [12]],
    "_upsample_nearest_exact2d": [_IMAGE, [8, 8]],
    "_upsample_nearest_exact3d": [_VOLUME, [8, 8, 8]],
    "acos": ["@u:4x3"],
    "addcdiv": ["@u:4x3", "@u:4x3", "@p:4x3"],
    "addcmul": [*["@u:4x3"] * 3],
    "addmv": ["@u:4", "@u:4x3", "@u:3"],
    "addr": ["@u:4x3", "@u:4", "@u:3"],
    "asin": ["@u:4x3"],
    "atan2": _PAIR,
    "bilinear": ["@u:2x3", "@u:2x4", "@u:5x3x4", "@u:5"],
    "chain_matmul": [["@u:2x3", "@u:3x4", "@u:4x2"]],
    "convolution": [_IMAGE, "@u:3x2x3x3", "@u:3", *_CONV_TAIL],
    "cosh": ["@u:4x3"],
    "cosine_similarity": _PAIR,
    "cross": _PAIR,
    "cumprod": ["@p:4x3", 0],
    "cumprod.dimname": ["@p:4x3{N,C}", "N"],
    "cumsum": ["@u:4x3", 0],
    "cumsum.dimname": ["@u:4x3{N,C}", "N"],
    "dist": _PAIR,
    "dot": ["@u:3", "@u:3"],
    "einsum": ["ij,jk->ik", ["@u:2x3", "@u:3x4"]],
    "erfinv": ["@u:4x3"],
    "exp": ["@u:4x3"],
    "expm1": ["@u:4x3"],
    "frobenius_norm.dim": ["@u:4x3", [1]],
    "group_norm": ["@u:2x4x3", 2, "@p:4", "@u:4"],
    "gru_cell": ["@u:2x3", "@u:2x4", "@u:12x3", "@u:12x4", "@u:12", "@u:12"],
    "index_put": ["@u:4x3", ["@v:2=0,2"], "@u:2x3"],
    "layer_norm": ["@u:4x3", [3]],
    "layer_norm/affine": ["@u:4x3", [3], "@p:3", "@u:3"],
    "linalg_matrix_norm": ["@g:4x4", 1],
    "linalg_matrix_norm.str_ord": ["@g:4x4"],
    "linalg_multi_dot": [["@u:2x3", "@u:3x4", "@u:4x2"]],
    "linalg_vector_norm": ["@u:4x3"],
    "log": ["@p:4x3"],
    "log10": ["@p:4x3"],
    "log1p": ["@p:4x3"],
    "log2": ["@p:4x3"],
    "log_softmax.int": ["@u:4x3", 1],
    "log_softmax.int/dtype": ["@u:4x3", 1, "#float64"],
    "log_softmax.Dimname": ["@u:4x3{N,C}", "C"],
    "logsumexp": ["@u:4x3", [1]],
    "lstm_cell": ["@u:2x3", ["@u:2x4", "@u:2x4"], "@u:16x3", "@u:16x4", "@u:16", "@u:16"],
    "mv": ["@u:4x3", "@u:3"],
    "native_layer_norm": ["@u:4x3", [3], "@p:3", "@u:3", 1e-5],
    "norm.Scalar": ["@u:4x3"],
    "norm.ScalarOpt_dim": ["@u:4x3", 2, [1]],
    "norm.names_ScalarOpt_dim": ["@u:4x3{N,C}", 2, ["C"]],
    "nuclear_norm": ["@g:4x4"],
    "nuclear_norm.dim": ["@g:4x4", [0, 1]],
    "pdist": ["@u:4x3"],
    "pow.Scalar": [2, "@u:4x3"],
    "pow.Tensor_Scalar": ["@u:4x3", 2],
    "pow.Tensor_Tensor": ["@p:4x3", "@u:4x3"],
    "reciprocal": ["@p:4x3"],
    "renorm": ["@u:4x3", 2, 0, 1],
    "rms_norm": ["@u:4x3", [3], "@p:3"],
    "rnn_relu_cell": _RNN,
    "rnn_tanh_cell": _RNN,
    "rsqrt": ["@p:4x3"],
    "scatter_add": ["@u:4x3", 0, "@v:2x3=0,1,2,3,2,1", "@u:2x3"],
    "sinh": ["@u:4x3"],
    "softmax.int": ["@u:4x3", 1],
    "softmax.int/dtype": ["@u:4x3", 1, "#float64"],
    "softmax.Dimname": ["@u:4x3{N,C}", "C"],
    "softplus": ["@u:4x3"],
    "sum": ["@u:4x3"],
    "sum.dim_IntList": ["@u:4x3", [1]],
    "sum.dim_DimnameList": ["@u:4x3{N,C}", ["C"]],
    "tan": ["@u:4x3"],
    "tensordot": ["@u:2x3", "@u:3x4", [1], [0]],
    "upsample_bicubic2d": [_IMAGE, [8, 8], False],
    "upsample_bilinear2d": [_IMAGE, [8, 8], False],
    "upsample_linear1d": ["@u:1x2x6", [12], False],
    "upsample_nearest1d": ["@u:1x2x6", [12]],
    "upsample_nearest2d": [_IMAGE, [8, 8]],
    "upsample_nearest3d": [_VOLUME, [8, 8, 8]],
    "upsample_trilinear3d": [_VOLUME, [8, 8, 8], False],
    "vdot": ["@u:3", "@u:3"],
}

# On AutocastCUDA's list, and without a kernel for CPUs.
CUDA_ONLY = {
    "_cudnn_rnn": ["@u:3x2x4", ["@u:20x4", "@u:20x5", "@u:20", "@u:20"], 4, None, "@u:1x2x5", "@u:1x2x5", 2, 5, 0, 1, False,
                   0.0, True, False, [], None],
    "_scaled_dot_product_flash_attention": [*["@u:1x2x4x8"] * 3],
    "_thnn_fused_gru_cell": ["@u:2x12", "@u:2x12", "@u:2x4"],
    "_thnn_fused_lstm_cell": ["@u:2x16", "@u:2x16", "@u:2x4"],
    "cudnn_convolution": [_IMAGE, "@u:3x2x3x3", [0, 0], [1, 1], [1, 1], 1, False, False, True],
    "cudnn_convolution_transpose": [_IMAGE, "@u:2x3x3x3", [0, 0], [0, 0], [1, 1], [1, 1], 1, False, False, True],
}

# On neither list: what users ask about, and the other ops of a usual model.
UNLISTED = {
    "add.Scalar": ["@u:4x3", 1.0],
    "add.Tensor": _PAIR,
    "avg_pool2d": [_IMAGE, [2, 2]],
    "batch_norm": [_IMAGE, "@p:2", "@u:2", None, None, True, 0.1, 1e-5, True],
    "div.Tensor": ["@u:4x3", "@p:4x3"],
    "dropout": ["@u:4x3", 0.5, False],
    "embedding": ["@u:4x3", "@v:3=0,2,1"],
    "embedding_bag": ["@u:4x3", "@v:3=0,2,1", "@v:1=0"],
    "gelu": ["@u:4x3"],
    "instance_norm": [_IMAGE, "@p:2", "@u:2", None, None, True, 0.1, 1e-5, True],
    "max_pool2d": [_IMAGE, [2, 2]],
    "mean": ["@u:4x3"],
    "mul.Tensor": _PAIR,
    "outer": ["@u:4", "@u:3"],
    "relu": ["@u:4x3"],
    "sigmoid": ["@u:4x3"],
    "silu": ["@u:4x3"],
    "std": ["@u:4x3"],
    "tanh": ["@u:4x3"],
    "var": ["@u:4x3"],
    "where.self": ["@k:4x3=0,1,1,0,0,1,1,0,0,1,1,0", "@u:4x3", "@u:4x3"],
}

FLOATING = "upngs"


def overload(name):
    """What calls "name.overload/variant", or None where this LibTorch lacks it."""
    name, _, kind = name.partition("/")[0].partition(".")
    found = getattr(getattr(torch.ops.aten, name, None), kind or "default", None)
    if found and ("imname" in kind or kind.startswith("names")):  # torch.ops refuses named tensors
        return getattr(torch._C._VariableFunctions, name)
    return found


def _tensor(text, dtypes, stream, leaves):
    kind, _, shape = text[1:].partition(":")
    shape, _, values = shape.partition("=")
    shape, _, names = shape.rstrip("}").partition("{")
    sizes = [int(size) for size in shape.rstrip("!").split("x") if size]
    if kind not in FLOATING:
        whole = torch.tensor([int(value) for value in values.split(",")]).reshape(sizes)
        return whole.to({"v": torch.int64, "w": torch.int32, "k": torch.bool}[kind])
    value = uniform(stream, sizes)
    if kind == "p":
        value = value * 0.375 + 0.5
    elif kind == "n":
        value = torch.where(value < 0, -1.0, 1.0)
    elif kind == "g":
        value = value / 8 + 2 * torch.eye(*sizes)
    elif kind == "s":
        value = (value + value.t()) / 8 + 2 * torch.eye(*sizes)
    value = value.to(dtypes[min(len(leaves), 1)])
    if names:
        value = value.rename(*names.split(","))
    value.requires_grad_(not shape.endswith("!"))
    leaves.append(value)
    return value


def arguments(recipe, dtypes):
    """Positional arguments, those by name, and the floating tensors in order; the first has dtypes[0], the others
    dtypes[1]. Tensor number i, in order, has the values of stream 20 + i."""
    leaves, count = [], 0

    def build(value):
        nonlocal count
        if isinstance(value, list):
            return [build(item) for item in value]
        if isinstance(value, str) and value.startswith("#"):
            return getattr(torch, value[1:])
        if isinstance(value, str) and value.startswith("@"):
            count += 1
            return _tensor(value, dtypes, 19 + count, leaves)
        return value

    positional = [build(value) for value in recipe if not isinstance(value, dict)]
    named = {key: build(value) for value in recipe if isinstance(value, dict) for key, value in value.items()}
    return positional, named, leaves
