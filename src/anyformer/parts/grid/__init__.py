"""What works on the grid of an image: windows, pooling, convolutions, autoencoders."""
