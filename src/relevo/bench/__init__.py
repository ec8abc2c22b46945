"""Measurements: what a hand-off costs, and what prefill does to decoding streams."""
