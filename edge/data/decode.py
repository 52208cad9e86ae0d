"""One file of sound, numbers or a picture as the inputs of one sample."""

import importlib
import io
import math
import re
import sys
import warnings
from pathlib import Path

import numpy as np

from edge.data.logmel import RATE, Note, model_input, read_clip
from edge.data.sources import UNREADABLE, Array, array_head, convert, input_specs, opened_npz
from edge.errors import DataError
from ternmesh.model_package import ModelPackage
from ternmesh_store.files import read_file

PICTURES = (".pgm", ".ppm", ".png", ".jpg", ".jpeg")
SUFFIXES = (".wav", ".npy", ".npz", *PICTURES)
BYTES_MAX, PIXELS_MAX, HEAD_MAX = 64 << 20, 1 << 24, 4096  # of a picture; bytes of its head
NPY_MAX, ITEM_MAX = 1 << 20, 16  # bytes of a .npy file at least; of each of its numbers at most
MODES = ("1", "L", "P", "RGB")  # of Pillow
_OTHER = re.compile(  # pictures of other kinds, which often have the name of a JPEG
    rb"(?s)(?P<GIF>GIF8)|(?P<BMP>BM)|(?P<TIFF>II\*\0|MM\0\*)|(?P<WebP>RIFF....WEBP)"
    rb"|(?P<HEIC>....ftyp)|(?P<JPEG2000>\0\0\0\x0cjP)|(?P<PNM>P[1-7]\s)"
)
_HEAD = re.compile(rb"P([56])" + 3 * rb"(?:\s|#[^\n]*\n)+(\d{1,6})" + rb"\s")


def read_sample(path: Path, package: ModelPackage, note: Note = str) -> dict[str, Array]:
    """The inputs of the sample in the file `path`, by name and without a batch axis; DataError.

    Sound becomes log-mel features or a clip for a front (`read_clip`), a picture numbers from 0 to
    1. Of an .npz file the arrays with the names of the inputs are read, other files are for models
    with one input. OSError where the file cannot be read.
    """
    specs = input_specs(package)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES or (len(specs) > 1 and suffix != ".npz"):
        raise DataError(f"{path} is no input for {package.name}: it may be {', '.join(SUFFIXES)}")
    inputs = {}
    for spec in specs:
        shape = spec.shape[1:]
        if suffix == ".npz":
            with opened_npz(path) as archive:
                found, dtype = array_head(path, archive, spec.name)
                is_fit = found == shape and dtype.itemsize <= ITEM_MAX
                array = archive[spec.name] if is_fit else np.empty(0)
                if {*archive.files} - {one.name for one in specs}:
                    note("arrays of an .npz file beside the inputs: folders and names give labels")
        elif suffix == ".npy":
            array = _read_npy(path, max(NPY_MAX, HEAD_MAX + ITEM_MAX * math.prod(shape)))
        elif suffix == ".wav":
            front = package.front if package.front and package.front.rate else None
            clip = read_clip(path, note, front)
            array = model_input(clip, front.rate if front else RATE, front)
        else:
            array = read_picture(path, shape)
        if array.shape != shape:
            raise DataError(f"{path} does not have the shape {shape} of {spec.name}")
        inputs[spec.name] = convert(np.array(array), spec, f"{path}: {spec.name}")
    return inputs


def _read_npy(path: Path, size_max: int) -> Array:
    data = io.BytesIO(read_file(path, size_max))  # not mapped: a file that shrinks kills us
    try:
        return np.lib.format.read_array(data, allow_pickle=False)
    except (EOFError, *UNREADABLE) as error:
        raise DataError(f"{path} is no .npy file of numbers ({error})") from error


def read_picture(path: Path, shape: tuple[int, ...]) -> Array:
    """Float32 [height, width], or with 1 or 3 channels as the first or the last axis; DataError.

    PGM and PPM must have the size of `shape`; the package Pillow reads other files and resizes.
    """
    height, width, channels = (*shape, 1, 1, 1)[:3]
    if is_first := len(shape) == 3 and height in (1, 3):
        height, width, channels = width, channels, height
    data = read_file(path, BYTES_MAX)
    head = _HEAD.match(data, 0, HEAD_MAX)
    if head and int(head[4]) == 255:
        size = int(head[3]), int(head[2]), 1 if head[1] == b"5" else 3
        if len(data) - head.end() != size[0] * size[1] * size[2]:
            raise DataError(f"{path} is cut off or too long: write it again")
        picture = np.frombuffer(data, np.uint8, offset=head.end()).reshape(size)
    else:
        picture = _with_pillow(path, data, (width, height), "L" if channels == 1 else "RGB")
    scaled = picture.astype(np.float32) / 255
    oriented = scaled.transpose(2, 0, 1) if is_first else scaled
    return oriented[..., 0] if len(shape) == 2 and oriented.shape[2] == 1 else oriented


def _with_pillow(path: Path, data: bytes, size: tuple[int, int], mode: str) -> Array:
    if (kind := _OTHER.match(data)) is not None:
        raise DataError(
            f"{path} is a {kind.lastgroup} picture: save it as PNG or JPEG, or P5 or P6 with 255 "
            f"levels, sides of 1 to 999999 and a head of up to {HEAD_MAX} bytes"
        )
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise DataError(
            f"{path}: pictures other than PGM and PPM (P5, P6, 255 levels) need the package "
            f"Pillow: {sys.executable} -m pip install pillow"
        ) from error
    warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # it is refused by its size
    try:
        with pillow.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > PIXELS_MAX:
                raise DataError(f"{path} has more than {PIXELS_MAX} pixels: make it smaller")
            upright = importlib.import_module("PIL.ImageOps").exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                upright = pillow.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            if upright.mode not in MODES or "transparency" in upright.info:
                raise DataError(
                    f"{path} has the mode {upright.mode}, or transparent parts: save it as grey or "
                    "RGB without them"
                )
            pixels = np.asarray(upright.convert(mode).resize(size), np.uint8)
    except pillow.DecompressionBombError as error:
        raise DataError(f"{path} has more than {PIXELS_MAX} pixels: make it smaller") from error
    except pillow.UnidentifiedImageError as error:
        raise DataError(f"{path} is damaged, or no PNG or JPEG picture") from error
    except (ValueError, SyntaxError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}): save it again") from error
    return pixels.reshape(*size[::-1], -1)
