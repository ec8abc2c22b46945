"""The control plane: what processes say to each other, and the links they say it over."""
