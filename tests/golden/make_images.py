"""Small image files of every kind that the decoder takes, 24 x 16 pixels each.

usage: python3 tests/golden/make_images.py tests/golden/images     (needs Pillow and numpy; made with Pillow 9.4.0)

tests/unit/test_image.c draws the same pictures and compares. tests/fuzz/corpus/image holds copies.
"""
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image

W, H = 24, 16
x, y = np.meshgrid(np.arange(W), np.arange(H))
colour = np.stack([10 * x, 15 * y, 128 + 4 * (x - y)], axis=2).astype(np.uint8)
grey = (5 * x + 8 * y).astype(np.uint8)
alpha = (11 * x & 255).astype(np.uint8)
index = ((x // 6 + y // 4) % 5).astype(np.uint8)
bit = ((x // 3 + y // 2) & 1).astype(np.uint8)
palette = [v for i in range(5) for v in (50 * i, 255 - 40 * i, 97 * i & 255)]
out_dir = sys.argv[1]


def save(name, image, **options):
    image.save(os.path.join(out_dir, name), **options)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, depth, colour_type, interlaced, rows):
    header = struct.pack(">IIBBBBB", W, H, depth, colour_type, 0, 0, interlaced)
    with open(os.path.join(out_dir, name), "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


rgb = Image.fromarray(colour)
paletted = Image.fromarray(index, "P")
paletted.putpalette(palette)
bits = Image.fromarray(bit * 255).convert("1")

save("rgb.png", rgb)
save("grey.png", Image.fromarray(grey))
save("grey_alpha.png", Image.fromarray(np.stack([grey, alpha], axis=2), "LA"))
save("rgb_alpha.png", Image.fromarray(np.dstack([colour, alpha]), "RGBA"))
save("palette.png", paletted)
save("bits.png", bits)
# Pillow writes neither 16 bits a channel nor interlaced rows.
wide = (colour.astype(int) * 256 + 77).astype(">u2")
png("rgb16.png", 16, 2, 0, b"".join(b"\0" + wide[i].tobytes() for i in range(H)))
passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
png("interlaced.png", 8, 2, 1, b"".join(b"\0" + row[x0::dx].tobytes() for x0, y0, dx, dy in passes for row in colour[y0::dy]))

save("rgb.bmp", rgb)
save("grey.bmp", Image.fromarray(grey))
save("palette.bmp", paletted)
save("bits.bmp", bits)
with open(os.path.join(out_dir, "rgb.bmp"), "rb") as f:
    bottom_up = f.read()
with open(os.path.join(out_dir, "downwards.bmp"), "wb") as f:
    f.write(bottom_up[:22] + struct.pack("<i", -H) + bottom_up[26:54] + colour[:, :, ::-1].tobytes())

save("rgb.jpg", rgb, quality=95, subsampling=0)
save("subsampled.jpg", rgb, quality=95, subsampling=2)
save("progressive.jpg", rgb, quality=95, progressive=True)
save("grey.jpg", Image.fromarray(grey), quality=95)
save("cmyk.jpg", rgb.convert("CMYK"), quality=95)
