"""The four checkpoint layouts of 4-bit weights: from codes and scales to the tensors of a file, and back.

`pack_*` gives a mapping from the tensor's name (the part after the last dot of the module) to the array; `unpack_*` takes one. Packing
what was unpacked gives the same bytes. Leading axes, such as experts, pass through.

Sources: vllm-project/compressed-tensors (nvfp4-pack-quantized, mxfp4-pack-quantized, pack-quantized), NVIDIA Model Optimizer (NVFP4),
openai/gpt-oss (MXFP4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.formats.blocks import Encoded
from perfmodel.formats.elements import Floats, get_element
from perfmodel.formats.format import Scheme
from perfmodel.formats.packing import pack_int4_words, pack_nibbles, unpack_int4_words, unpack_nibbles
from perfmodel.formats.scales import FP32_MAX

Tensors = Mapping[str, NDArray[Any]]

NVFP4 = Scheme(element="e2m1", per="group", block=(1, 16), scale="e4m3", tensor_scale=True)
MXFP4 = Scheme(element="e2m1", per="group", block=(1, 32), scale="e8m0")
GPT_OSS_BLOCK_BYTES = 16


def pack_compressed_tensors_nvfp4(encoded: Encoded) -> dict[str, NDArray[Any]]:
    """weight_packed u8 [..., N, K/2], weight_scale E4M3 codes [..., N, K/16], weight_global_scale f32 [..., 1] to divide by.

    Raises PerfModelError for another scheme than NVFP4, and for weights so small that the divisor passes FP32.
    """
    scales, tensor_scale = _nvfp4_parts(encoded)
    divisor = 1 / tensor_scale[..., None]
    if divisor.max() > FP32_MAX:
        raise PerfModelError(
            "weights are too small for this layout's FP32 divisor", field="weight_global_scale", value=float(divisor.max())
        )
    reciprocal = divisor.astype(np.float32)
    return {"weight_packed": pack_nibbles(encoded.codes), "weight_scale": scales, "weight_global_scale": reciprocal}


def unpack_compressed_tensors_nvfp4(tensors: Tensors) -> Encoded:
    """The inverse of `pack_compressed_tensors_nvfp4`. Raises PerfModelError that names the tensor that is missing or does not fit."""
    codes = unpack_nibbles(_get(tensors, "weight_packed", "u"))
    scales = _scale_codes(tensors, "weight_scale", codes, block=16)
    divisor = _tensor_scale(tensors, "weight_global_scale", codes)
    return Encoded(NVFP4, codes, scales, 1 / divisor)


def pack_compressed_tensors_mxfp4(encoded: Encoded) -> dict[str, NDArray[Any]]:
    """weight_packed u8 [..., N, K/2], weight_scale E8M0 codes [..., N, K/32]. Raises PerfModelError for another scheme than MXFP4."""
    return {"weight_packed": pack_nibbles(encoded.codes), "weight_scale": _mxfp4_scales(encoded)}


def unpack_compressed_tensors_mxfp4(tensors: Tensors) -> Encoded:
    """The inverse of `pack_compressed_tensors_mxfp4`. Raises PerfModelError that names the tensor that is missing or does not fit."""
    codes = unpack_nibbles(_get(tensors, "weight_packed", "u"))
    return Encoded(MXFP4, codes, _scale_codes(tensors, "weight_scale", codes, block=32))


def pack_modelopt_nvfp4(encoded: Encoded) -> dict[str, NDArray[Any]]:
    """weight u8 [..., N, K/2], weight_scale E4M3 codes [..., N, K/16], weight_scale_2 f32 [...] to multiply by.

    Zero scales become 1, as this layout has them, and the codes below them 0. `input_scale` belongs to the activations: the caller's.
    Raises PerfModelError for another scheme than NVFP4.
    """
    scales, tensor_scale = _nvfp4_parts(encoded)
    empty = scales == 0
    codes = np.where(np.repeat(empty, 16, axis=-1), np.uint8(0), encoded.codes)
    one = get_element("e4m3").encode(1.0)
    return {
        "weight": pack_nibbles(codes),
        "weight_scale": np.where(empty, one, scales),
        "weight_scale_2": np.asarray(tensor_scale, np.float32),
    }


def unpack_modelopt_nvfp4(tensors: Tensors) -> Encoded:
    """The inverse of `pack_modelopt_nvfp4`; `input_scale` is left alone. Raises PerfModelError that names the tensor that does not fit."""
    codes = unpack_nibbles(_get(tensors, "weight", "u"))
    scales = _scale_codes(tensors, "weight_scale", codes, block=16)
    return Encoded(NVFP4, codes, scales, _tensor_scale(tensors, "weight_scale_2", codes))


def pack_gpt_oss(encoded: Encoded) -> dict[str, NDArray[Any]]:
    """blocks u8 [E, rows, K/32, 16] and scales, E8M0 codes [E, rows, K/32]. Raises PerfModelError for another scheme than MXFP4.

    The rows of a gate-and-up projection alternate: see `interleave_gate_up`.
    """
    packed = pack_nibbles(encoded.codes)
    return {"blocks": packed.reshape(*packed.shape[:-1], -1, GPT_OSS_BLOCK_BYTES), "scales": _mxfp4_scales(encoded)}


def unpack_gpt_oss(tensors: Tensors) -> Encoded:
    """The inverse of `pack_gpt_oss`. Raises PerfModelError that names the tensor that is missing or does not fit."""
    blocks = _get(tensors, "blocks", "u")
    if blocks.ndim < 3 or blocks.shape[-1] != GPT_OSS_BLOCK_BYTES:
        raise PerfModelError("must be [E, rows, K/32, 16]", field="blocks", value=blocks.shape, mend="Pass the tensor as the file has it.")
    codes = unpack_nibbles(blocks.reshape(*blocks.shape[:-2], -1))
    return Encoded(MXFP4, codes, _scale_codes(tensors, "scales", codes, block=32))


def interleave_gate_up(gate: NDArray[Any], up: NDArray[Any]) -> NDArray[Any]:
    """Rows [..., I, K] of gate and of up as [..., 2 * I, K]: gate 0, up 0, gate 1, up 1, ... Raises PerfModelError for unlike shapes."""
    if gate.shape != up.shape or gate.ndim < 2:
        raise PerfModelError(
            "gate and up must have one shape [..., I, K]", value=(gate.shape, up.shape), mend="Pass both projections whole."
        )
    return np.stack([gate, up], axis=-2).reshape(*gate.shape[:-2], 2 * gate.shape[-2], gate.shape[-1])


def split_gate_up(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Interleaved rows [..., 2 * I, K], of codes, scales or values, as gate and up [..., I, K]. Raises PerfModelError for odd rows."""
    if rows.ndim < 2 or rows.shape[-2] % 2:
        raise PerfModelError("gate and up rows must alternate, so their number is even", value=rows.shape, mend="Pass [..., 2 * I, K].")
    return rows[..., 0::2, :], rows[..., 1::2, :]


def pack_int4(encoded: Encoded) -> dict[str, NDArray[Any]]:
    """weight_packed int32 [N, K/8] of value + 8, weight_scale [N, K/group] in its own type, weight_shape int64 [2].

    With zero points also weight_zero_point int32 [N/8, K/group], packed along N.
    Raises PerfModelError for another scheme than INT4 in groups along K.
    """
    scheme = encoded.scheme
    if scheme.element != "int4" or scheme.block is None or scheme.block[0] != 1 or encoded.scales is None:
        raise PerfModelError("pack-quantized holds INT4 in groups along K", value=scheme.element, mend="Encode with per: group.")
    if encoded.codes.ndim != 2:
        raise PerfModelError("pack-quantized holds one matrix a module", value=encoded.codes.shape, mend="Pack the experts one by one.")
    shape = np.array(encoded.codes.shape, np.int64)
    tensors = {"weight_packed": pack_int4_words(encoded.codes), "weight_scale": encoded.scales, "weight_shape": shape}
    if encoded.zeros is not None:
        padded = np.pad(encoded.zeros, ((0, -shape[0] % 8), (0, 0)))
        tensors["weight_zero_point"] = pack_int4_words(padded.T).T
    return tensors


def unpack_int4(tensors: Tensors) -> Encoded:
    """The inverse of `pack_int4`; the group follows from the shapes.

    Raises PerfModelError that names the tensor that does not fit, or weight_g_idx, whose reordering of K is not read.
    """
    if "weight_g_idx" in tensors:
        raise PerfModelError("reordered INT4 is not read", field="weight_g_idx", mend="Store the groups in the order of K.")
    codes = unpack_int4_words(_get(tensors, "weight_packed", "i"))
    scales, shape = _get(tensors, "weight_scale", "fV"), _get(tensors, "weight_shape", "i")
    if tuple(shape.tolist()) != codes.shape:
        raise PerfModelError(f"disagrees with weight_packed, which holds {codes.shape}", field="weight_shape", value=tuple(shape.tolist()))
    if scales.ndim != 2 or scales.shape[0] != codes.shape[0] or codes.shape[1] % max(scales.shape[1], 1) or not scales.size:
        raise PerfModelError(f"must be [N, K/group] for weights {codes.shape}", field="weight_scale", value=scales.shape)
    kinds = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
    if scales.dtype.name not in kinds:
        raise PerfModelError("must be float16, bfloat16 or float32", field="weight_scale", value=scales.dtype.name)
    zeros = _int4_zeros(_get(tensors, "weight_zero_point", "i"), scales.shape) if "weight_zero_point" in tensors else None
    fields = {"element": "int4", "per": "group", "block": (1, codes.shape[1] // scales.shape[1]), "scale": kinds[scales.dtype.name]}
    return Encoded(Scheme.model_validate({**fields, "zero_point": zeros is not None}), codes, scales, zeros=zeros)


def _int4_zeros(packed: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Zero points of 8 rows a word [ceil(N/8), K/group] as INT4 codes [N, K/group]."""
    wanted = (-(-shape[0] // 8), shape[1])
    if packed.shape != wanted:
        raise PerfModelError(f"must have the shape {wanted}", field="weight_zero_point", value=packed.shape, mend="Check the layout.")
    return unpack_int4_words(packed.T).T[: shape[0]]


def _nvfp4_parts(encoded: Encoded) -> tuple[NDArray[Any], Floats]:
    if encoded.scheme != NVFP4 or encoded.scales is None or encoded.tensor_scale is None:
        raise PerfModelError("this layout holds NVFP4", value=encoded.scheme.element, mend="Encode with the weights scheme of nvfp4.")
    return encoded.scales, np.asarray(encoded.tensor_scale)


def _mxfp4_scales(encoded: Encoded) -> NDArray[Any]:
    if encoded.scheme != MXFP4 or encoded.scales is None:
        raise PerfModelError("this layout holds MXFP4", value=encoded.scheme.element, mend="Encode with the weights scheme of mxfp4.")
    return encoded.scales


def _get(tensors: Tensors, name: str, kinds: str) -> NDArray[Any]:
    """The tensor of this name, whose dtype is of one of the numpy `kinds`."""
    if name not in tensors:
        raise PerfModelError("tensor is missing", field=name, mend=did_you_mean(name, tensors))
    tensor = np.asarray(tensors[name])
    if tensor.dtype.kind not in kinds:
        raise PerfModelError("tensor has the wrong type", field=name, value=tensor.dtype.name, mend="Pass the tensor as the file has it.")
    return tensor


def _scale_codes(tensors: Tensors, name: str, codes: NDArray[Any], block: int) -> NDArray[np.uint8]:
    """Scales as codes uint8 [..., N, K/block]; E4M3 and E8M0 arrays of `ml_dtypes` are viewed as bytes."""
    scales = _get(tensors, name, "ufV")
    wanted = (*codes.shape[:-1], codes.shape[-1] // block)
    if codes.shape[-1] % block:
        raise PerfModelError(
            f"{codes.shape[-1]} weights a row are no multiple of the block of {block}", field=name, mend="Check the layout."
        )
    if scales.dtype.itemsize != 1 or scales.shape != wanted:
        raise PerfModelError(
            f"must hold one byte a scale, shape {wanted}", field=name, value=(scales.dtype.name, scales.shape), mend="Check the layout."
        )
    return scales.view(np.uint8)


def _tensor_scale(tensors: Tensors, name: str, codes: NDArray[Any]) -> Floats:
    """One FP32 scale a matrix, float64 in the shape of the leading axes."""
    scale = _get(tensors, name, "f").astype(np.float64)
    lead = codes.shape[:-2]
    if scale.size != int(np.prod(lead)):
        raise PerfModelError(
            f"must hold one scale for each matrix, {lead or (1,)}", field=name, value=scale.shape, mend="Check the layout."
        )
    if not np.all((scale > 0) & (scale <= FP32_MAX)):
        raise PerfModelError("must be positive and finite", field=name, value=float(scale.min()), mend="The checkpoint is damaged.")
    return scale.reshape(lead)
