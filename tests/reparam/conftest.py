"""Images on the device of the tests."""

import pytest

from support.reparam import batches


@pytest.fixture
def data(device):
    """Four batches."""
    return batches(4, device=device)


@pytest.fixture
def x(data):
    """Images of one batch."""
    return data[0][0]
