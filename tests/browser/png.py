"""Makes the pictures of pages small: their colours become a palette, without a further program.

A page has few colours; only the edges of letters have more. The 256 most frequent colours are kept,
and each other one becomes the nearest of these.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS_MAX = 256
_CHANNELS = {2: 3, 6: 4}  # by PNG's type of colours: RGB and RGBA

Pixels = NDArray[np.uint8]
"""Rows of pixels, each with red, green and blue."""


def smaller(png: bytes) -> bytes:
    """Return a picture with 8 bits for each channel as one with a palette."""
    return encoded(decoded(png))


def decoded(png: bytes) -> Pixels:
    """Return the pixels of a PNG that Chromium wrote: 8 bits for each channel, not interlaced."""
    assert png.startswith(_SIGNATURE)
    chunks = list(_chunks(png))
    (head,) = [data for kind, data in chunks if kind == b"IHDR"]
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    assert (depth, interlaced) == (8, 0)
    channels = _CHANNELS[kind]
    raw = zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT"))
    rows = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height + 1, width, channels), np.uint8)
    for at, row in enumerate(rows):
        _unfilter(int(row[0]), row[1:].reshape(width, channels), pixels[at], pixels[at + 1])
    return pixels[1:, :, :3]


def _unfilter(kind: int, row: Pixels, above: Pixels, into: Pixels) -> None:
    if kind in (0, 2):
        into[:] = row if kind == 0 else row + above
        return
    if kind == 1:
        into[:] = np.cumsum(row, axis=0, dtype=np.uint8)
        return
    up = above.astype(int).tolist()
    left, corner = [0] * row.shape[1], [0] * row.shape[1]
    for at, pixel in enumerate(row.tolist()):
        near = zip(left, up[at], corner, strict=True)
        guess = [(a + b) // 2 if kind == 3 else _paeth(a, b, c) for a, b, c in near]
        left = [(value + more) % 256 for value, more in zip(pixel, guess, strict=True)]
        corner = up[at]
        into[at] = left


def _paeth(left: int, above: int, corner: int) -> int:
    about = left + above - corner
    return min((left, above, corner), key=lambda each: abs(about - each))


def encoded(pixels: Pixels) -> bytes:
    """Return a PNG with a palette: its 256 most frequent colours."""
    height, width, _ = pixels.shape
    wide = pixels.astype(np.uint32)
    packed = wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]
    colours, places, counts = np.unique(packed.ravel(), return_inverse=True, return_counts=True)
    kept = np.argsort(-counts, kind="stable")[:_COLOURS_MAX]
    channels = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(int)
    nearest = [((channels[kept] - each) ** 2).sum(axis=1).argmin() for each in channels]
    rows = np.zeros((height, 1 + width), np.uint8)
    rows[:, 1:] = np.array(nearest, np.uint8)[places].reshape(height, width)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = channels[kept].astype(np.uint8).tobytes()
    data = zlib.compress(rows.tobytes(), 9)
    named = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", data), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(*each) for each in named)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
