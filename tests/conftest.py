"""What tests of several rooms need: the demo's model, and small random checkpoints."""

import pytest

from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.model_source import resolve_model


@pytest.fixture(scope="session")
def smollm():
    """The demo's model; `make test` has fetched it."""
    return resolve_model(DEMO_MODEL)
