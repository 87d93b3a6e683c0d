"""The words of error messages."""

from __future__ import annotations

import pytest

from lowtide.solver.errors import a_type


@pytest.mark.parametrize(
    "words",
    [
        "an int", "an OrderedDict", "an LSTM", "an Upsample", "an Unfold", "an RNN", "an SGD",
        "a str", "a UNet", "a Unet", "a UserDict", "a Uniform", "a Linear", "a Tensor", "a GRU",
    ],
)  # fmt: skip
def test_article_of_a_type(words: str) -> None:
    """The article follows the sound of the name."""
    assert a_type(type(words.split()[1], (), {})) == words
