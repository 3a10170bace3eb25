"""Parts that work on the grid of an image: windows, pooling, convolutions, autoencoders."""
