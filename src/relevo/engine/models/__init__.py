"""Model architectures and how their weights are found, fused and cached."""
