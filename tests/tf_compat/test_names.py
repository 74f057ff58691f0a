"""The names and layouts of a Keras model are those of the same model in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.tf_compat.installed import keras, tf
from tf_compat.embedding import Embedding
from tf_compat.names import places
from torch_edl.errors import UsageError

L = keras.layers


class Net(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv = L.Conv2D(3, 2)
        self.norm = L.BatchNormalization(epsilon=1e-5)
        self.blocks = [L.Dense(4, "relu"), L.Dense(5, use_bias=False)]
        self.head = keras.Sequential([L.Dense(2, name="out"), L.Dropout(0.5), L.Dense(1)])
        self._hidden = L.LayerNormalization(epsilon=1e-5, name="last")

    def call(self, images: Any) -> Any:
        made = tf.transpose(self.norm(self.conv(images)), (0, 3, 1, 2))
        made = tf.reshape(made, (-1, 3 * 3 * 3))
        for block in self.blocks:
            made = block(made)
        return self.head(self._hidden(made))


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.norm = nn.BatchNorm2d(3)
        self.blocks = nn.ModuleList([nn.Linear(27, 4), nn.Linear(4, 5, bias=False)])
        self.last = nn.LayerNorm(5)
        out: dict[str, nn.Module] = {"out": nn.Linear(5, 2), "2": nn.Linear(2, 1)}
        self.head = nn.ModuleDict(out)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = self.norm(self.conv(images)).flatten(1)
        made = self.blocks[1](self.blocks[0](made).relu())
        made = self.last(made)
        return self.head["2"](self.head["out"](made))  # type: ignore[no-any-return]


def test_a_model_takes_the_state_dict_of_the_same_model_in_torch() -> None:
    ours, theirs = Net(), Torch().eval()
    images = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype(np.float32)
    ours(images)
    nn.init.normal_(theirs.norm.running_mean)
    state = {n: v.numpy() for n, v in theirs.state_dict().items() if "num_batches" not in n}
    found = {place.name: place for place in places(ours, {})}
    assert {n: p.shape for n, p in found.items()} == {n: v.shape for n, v in state.items()}
    for name, place in found.items():
        place.assign(state[name])
        np.testing.assert_array_equal(place.value, state[name])
    assert {n for n, p in found.items() if p.is_buffer} == {"norm.running_mean", "norm.running_var"}
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(images.transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(ours(images, training=False), wanted, rtol=1e-4, atol=1e-5)


def test_layers_that_keras_named_are_called_by_their_places() -> None:
    for _ in range(2):  # whatever was made before in this process
        made = keras.Sequential([keras.Input((3,)), L.Dense(4), L.ReLU(), L.Dense(1, name="top")])
        assert [p.name for p in places(made, {})] == [
            "0.bias",
            "0.weight",
            "top.bias",
            "top.weight",
        ]


def test_two_variables_of_one_name_are_refused() -> None:
    class Clash(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = self.add_weight(shape=(1,), name="w")
            self.two = self.add_weight(shape=(1,), name="w")

    with pytest.raises(UsageError, match="two variables are called 'w'"):
        places(Clash(), {})


def test_an_embedding_is_made_again_from_its_config() -> None:
    made = Embedding(None, 4, table="t", initializer=("normal", {"std": 2}), max_rows=7)
    again = Embedding.from_config(made.get_config())
    assert (again.options, again.table) == (made.options, "t")
    with pytest.raises(UsageError, match="max_age 0: must be 1 or more"):
        Embedding(None, 4, max_age=0)
