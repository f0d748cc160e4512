"""Golden values of the resize from Pillow.

usage: python3 tests/golden/make_resize.py tests/golden/resize.bin     (needs Pillow and numpy; made with Pillow 9.4.0)

All numbers are little-endian. 400 u32: for source width s = 1..400 and height (7 s) mod 400 + 1, the Adler-32 of
Image.resize((128, 128), BILINEAR). Then a u32 count of cases, each four u16 (source width and height, result width
and height) and the result's bytes. Sources are not stored: both sides draw them with the same integer hash.
"""
import struct
import sys
import zlib

import numpy as np
from PIL import Image

SIDES = [1, 2, 3, 5, 16, 23, 24, 25, 31, 47, 64, 100, 127, 128, 129, 200, 255, 256, 257, 300, 333, 399, 400]


def source(w, h):
    x = np.arange(w, dtype=np.uint32)[None, :, None] * np.uint32(73856093)
    y = np.arange(h, dtype=np.uint32)[:, None, None] * np.uint32(19349663)
    c = np.arange(3, dtype=np.uint32)[None, None, :] * np.uint32(83492791)
    return (((x ^ y ^ c) >> np.uint32(13)) & np.uint32(255)).astype(np.uint8)


def resized(sw, sh, dw, dh):
    return Image.fromarray(source(sw, sh)).resize((dw, dh), Image.BILINEAR).tobytes()


sums = [zlib.adler32(resized(s, s * 7 % 400 + 1, 128, 128)) for s in range(1, 401)]
cases = [(s, SIDES[-1 - i], 24, 20) for i, s in enumerate(SIDES)]
cases += [(s, s, 1, 1) for s in (1, 2, 400)] + [(24, 90, 24, 20), (90, 20, 24, 20), (24, 20, 24, 20), (3, 2, 100, 7)]
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<400I", *sums) + struct.pack("<I", len(cases)))
    for case in cases:
        f.write(struct.pack("<4H", *case) + resized(*case))
