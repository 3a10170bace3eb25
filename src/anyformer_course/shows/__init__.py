"""One worked example per file: `example(text=..., *, option=...) -> Shown`."""
