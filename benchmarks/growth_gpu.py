from collections.abc import Iterator
def measure(options) -> Iterator: yield from ()
