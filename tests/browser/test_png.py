"""Goal: the pictures in the docs are small and show what the browser drew.

Method: random pictures, written by hand with each of PNG's filters, read, made small, read again.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from tests.browser import png


def written(pixels, kind):
    """Return a PNG of RGB pixels whose rows all have one filter."""
    height, width, channels = pixels.shape
    wide = pixels.astype(int)
    left = np.pad(wide, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    above = np.pad(wide, ((1, 0), (0, 0), (0, 0)))[:-1]
    corner = np.pad(wide, ((1, 0), (1, 0), (0, 0)))[:-1, :-1]
    paeth = np.vectorize(png._paeth, otypes=[int])(left, above, corner)
    guess = [np.zeros_like(wide), left, above, (left + above) // 2, paeth][kind]
    rows = ((wide - guess) % 256).astype(np.uint8).reshape(height, width * channels)
    data = b"".join(bytes([kind]) + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return png._SIGNATURE + b"".join(png._chunk(*each) for each in chunks)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("channels", [3, 4])
def test_every_filter_is_read(kind, channels):
    drawn = np.random.default_rng(kind)
    pixels = drawn.integers(0, 256, (9, 7, channels)).astype(np.uint8)
    assert (png.decoded(written(pixels, kind)) == pixels[..., :3]).all()


def palette_of(picture):
    """Return the pixels of a picture with a palette."""
    chunks = dict(png._chunks(picture))
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    colours = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    raw = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    return colours[raw[:, 1:]]


def test_a_picture_of_few_colours_stays_as_it_is():
    pixels = np.random.default_rng(1).integers(0, 6, (40, 30, 3)).astype(np.uint8) * 51
    assert (palette_of(png.smaller(written(pixels, 1))) == pixels).all()


def test_a_rare_colour_of_many_becomes_the_nearest_frequent_one():
    frequent = np.arange(256, dtype=np.uint8)[None, :, None].repeat(2, axis=0).repeat(3, axis=2)
    rare = np.array([[[10, 11, 10], [200, 199, 199]]], np.uint8)
    pixels = np.concatenate([frequent.reshape(1, -1, 3), rare], axis=1)
    found = palette_of(png.smaller(written(pixels, 0)))
    assert (found[:, :512] == pixels[:, :512]).all()
    assert found[0, 512:].tolist() == [[10, 10, 10], [199, 199, 199]]
