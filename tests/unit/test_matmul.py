"""oneDNN under torch's matrix products against torch's own kernels."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_edl import matmul

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN linear"
)


@pytest.fixture(autouse=True)
def _torch_afterwards() -> Iterator[None]:
    yield
    matmul.uninstall()


def kernels(product: Tensor) -> set[str]:
    """Names of the operators that make ``left @ right`` for a big product."""
    with torch.profiler.profile() as profile:
        product @ product.t()
    return {event.key for event in profile.key_averages()}


def big(*shape: int) -> Tensor:
    return torch.randn(*shape)


PRODUCTS = {
    "mm": lambda: big(300, 129) @ big(129, 200),
    "left transposed": lambda: big(129, 300).t() @ big(129, 200),
    "right transposed": lambda: big(300, 129) @ big(200, 129).t(),
    "expanded": lambda: torch.ones(()).expand(300, 129) @ big(129, 200),
    "strided": lambda: big(300, 400)[:, ::3] @ big(134, 200),
    "sliced": lambda: big(300, 500)[:, 7:136] @ big(400, 200)[20:149],
    "linear": lambda: F.linear(big(300, 129), big(200, 129), big(200)),
    "linear of rank 3": lambda: F.linear(big(10, 30, 129), big(200, 129), big(200)),
    "addmm scaled": lambda: torch.addmm(
        big(300, 200), big(300, 129), big(129, 200), beta=0.5, alpha=2
    ),
    "small": lambda: big(3, 4) @ big(4, 5),
    "empty": lambda: big(0, 4) @ big(4, 5),
    "double": lambda: big(300, 129).double() @ big(129, 200).double(),
    "integer": lambda: big(300, 129).long() @ big(129, 200).long(),
    "bfloat16": lambda: big(300, 129).bfloat16() @ big(129, 200).bfloat16(),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_equals_torch(name: str) -> None:
    torch.manual_seed(0)
    expected = PRODUCTS[name]()
    matmul.install()
    torch.manual_seed(0)
    torch.testing.assert_close(PRODUCTS[name](), expected, rtol=1e-5, atol=1e-4)


def test_gradients_equal_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(129, 200), nn.ReLU(), nn.Linear(200, 150))
    inputs = big(300, 129).requires_grad_()

    def gradients() -> list[Tensor]:
        return list(
            torch.autograd.grad(model(inputs).square().sum(), [*model.parameters(), inputs])
        )

    expected = gradients()
    matmul.install()
    torch.testing.assert_close(gradients(), expected, rtol=1e-4, atol=1e-2)


def test_installs_and_uninstalls() -> None:
    matrix = big(300, 200)
    assert "mkldnn::_linear_pointwise" not in kernels(matrix)
    matmul.install()
    matmul.install()
    assert "mkldnn::_linear_pointwise" in kernels(matrix)
    matmul.uninstall()
    assert "mkldnn::_linear_pointwise" not in kernels(matrix)


@pytest.mark.parametrize(
    ("left", "right"), [((300, 129), (128, 200)), ((300,), (300, 200)), ((2, 3, 4), (4, 5))]
)
def test_a_wrong_call_fails_as_it_does_in_torch(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.mm(big(*left), big(*right))
    matmul.install()
    with pytest.raises(RuntimeError) as ours:
        torch.mm(big(*left), big(*right))
    assert str(ours.value) == str(of_torch.value)
