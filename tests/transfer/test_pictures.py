"""What is drawn below predictions: a legend that never outgrows its picture, a note that is never cut."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitlet.pictures import pixels
from vitlet.pictures.pixels import colour, with_legend, with_note


@pytest.mark.parametrize("size", [(48, 64), (300, 400), (600, 20), (20, 600)])
@pytest.mark.parametrize("count", [1, 150])
def test_the_legend_is_smaller_than_the_picture(
    size: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    draw = pixels.ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        pixels.ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, **how: (written.append(text), draw(self, at, text, **how)),
    )
    image = np.full((*size, 3), 7, np.uint8)
    drawn = with_legend([image, image], [f"class {n}" for n in range(count)], [colour(n) for n in range(count)])
    factor = max(1, -(-256 // max(size)))
    assert drawn.width >= 2 * factor * size[1]
    legend = drawn.height - factor * size[0]
    assert 0 < legend <= max(factor * size[0] / 3 + 6, 30)
    named = [text for text in written if text.startswith("class ")]
    assert named == [f"class {n}" for n in range(len(named))]
    assert written[len(named) :] == ([f"and {count - len(named)} more"] if len(named) < count else [])
    assert count == 1 or size != (48, 64) or len(named) < count
    below = np.asarray(drawn)[factor * size[0] :].reshape(-1, 3)
    for place in range(len(named)):  # a square of each colour that is named
        assert (below == colour(place)).all(1).any()


def test_a_note_is_below_and_not_cut() -> None:
    picture = Image.new("RGB", (64, 48), "black")
    noted = with_note(picture, "12 more objects, with lower scores, are not drawn")
    assert noted.crop((0, 0, 64, 48)).tobytes() == picture.tobytes()
    strip = np.asarray(noted)[48:].min(2)
    assert (strip < 128).any()
    assert (strip[:, -3:] == 255).all()
    assert (strip[-2:] == 255).all()
