"""A small rasteriser: shapes are signed distances, so that edges are smooth, and all of it is NumPy.

Points are (x, y) in the units of the scene, y upwards; colours are RGB from 0 to 255.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Colour = tuple[int, int, int]
Point = Sequence[float] | np.ndarray

# Okabe and Ito's colours, which colour-blind eyes can tell apart.
PAPER: Colour = (250, 250, 247)
INK: Colour = (40, 42, 54)
GREY: Colour = (160, 163, 172)
ORANGE: Colour = (230, 159, 0)
SKY: Colour = (86, 180, 233)
GREEN: Colour = (0, 158, 115)
YELLOW: Colour = (240, 228, 66)
BLUE: Colour = (0, 114, 178)
RED: Colour = (213, 94, 0)
PINK: Colour = (204, 121, 167)
WHITE: Colour = (255, 255, 255)
PALETTE = (WHITE, RED, SKY, YELLOW, GREEN, PINK, ORANGE, BLUE, GREY, (150, 220, 170))


class Canvas(NamedTuple):
    """A picture in the making.

    Attributes:
        image: float32 [H, W, 3], 0 to 255.
        x: float [W], scene coordinates of the pixel centres.
        y: float [H, 1].
        pixel: the size of a pixel in scene units.
    """

    image: np.ndarray
    x: np.ndarray
    y: np.ndarray
    pixel: float


def canvas(height: int, width: int, *, left: float, right: float, bottom: float) -> Canvas:
    """Blank paper of `height` by `width` pixels that shows x from `left` to `right` and y from `bottom` upwards."""
    pixel = (right - left) / width
    x = left + pixel * (np.arange(width) + 0.5)
    y = bottom + pixel * (height - np.arange(height) - 0.5)
    return Canvas(np.full((height, width, 3), PAPER, np.float32), x, y[:, None], pixel)


def finish(canvas: Canvas) -> np.ndarray:
    """The picture, uint8 [H, W, 3]."""
    return np.rint(canvas.image).astype(np.uint8)


def disc(canvas: Canvas, centre: Point, radius: float, colour: Colour) -> Canvas:
    """A filled circle."""
    return _fill(canvas, np.hypot(canvas.x - centre[0], canvas.y - centre[1]) - radius, colour)


def stroke(canvas: Canvas, begin: Point, end: Point, width: float, colour: Colour) -> Canvas:
    """A straight line with round ends."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    x, y = canvas.x - begin[0], canvas.y - begin[1]
    along = np.clip((x * dx + y * dy) / max(dx * dx + dy * dy, 1e-12), 0, 1)
    return _fill(canvas, np.hypot(x - along * dx, y - along * dy) - width / 2, colour)


def box(canvas: Canvas, centre: Point, size: Point, colour: Colour, angle: float = 0.0) -> Canvas:
    """A filled rectangle of width and height `size`, turned by `angle` radians, anticlockwise."""
    x, y = canvas.x - centre[0], canvas.y - centre[1]
    across = np.abs(np.cos(angle) * x + np.sin(angle) * y) - size[0] / 2
    up = np.abs(np.cos(angle) * y - np.sin(angle) * x) - size[1] / 2
    return _fill(canvas, np.maximum(across, up), colour)


def below(
    canvas: Canvas,
    height: Callable[[np.ndarray], np.ndarray],
    slope: Callable[[np.ndarray], np.ndarray],
    colour: Colour,
) -> Canvas:
    """Everything under the curve y = height(x), whose derivative is `slope`."""
    return _fill(canvas, (canvas.y - height(canvas.x)) / np.hypot(1, slope(canvas.x)), colour)


def tiles(colours: np.ndarray, pixels: int = 320) -> np.ndarray:
    """A board, uint8 [H, W, 3], one colour a cell, enlarged so that its shorter side has at least `pixels` pixels."""
    scale = max(2, -(-pixels // min(colours.shape[:2])))
    image = np.repeat(np.repeat(colours.astype(np.uint8), scale, axis=0), scale, axis=1)
    image[scale - 1 :: scale] = image[scale - 1 :: scale] // 4 * 3
    image[:, scale - 1 :: scale] = image[:, scale - 1 :: scale] // 4 * 3
    return image


def channels(planes: np.ndarray, pixels: int = 320) -> np.ndarray:
    """A board from bool [H, W, C], a colour for each channel; the first channel lies on top."""
    colours = np.full((*planes.shape[:2], 3), INK, np.uint8)
    for channel in reversed(range(planes.shape[-1])):
        colours[planes[..., channel]] = PALETTE[channel % len(PALETTE)]
    return tiles(colours, pixels)


def frame(name: str, drawn: Any) -> np.ndarray:
    """What an environment of another library drew, as uint8 [H, W, 3]; transparency is left out.

    Raises:
        ValueError: it is no picture.
    """
    shape, dtype = np.shape(drawn), getattr(drawn, "dtype", None)
    if dtype != np.uint8 or len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        got = f"{dtype}{list(shape)}" if dtype is not None else f"{type(drawn).__name__}"
        raise ValueError(f"{name} cannot be drawn: render() must return uint8 [height, width, 3], got {got}")
    picture = np.asarray(drawn)
    picture = picture[..., None] if picture.ndim == 2 else picture
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[..., :3]


def _fill(canvas: Canvas, distance: np.ndarray, colour: Colour) -> Canvas:
    """Paints where `distance` [H, W], in scene units, is negative; an edge pixel gets its share."""
    cover = np.clip(0.5 - distance / canvas.pixel, 0, 1)[..., None].astype(np.float32)
    return canvas._replace(image=canvas.image + cover * (np.asarray(colour, np.float32) - canvas.image))
