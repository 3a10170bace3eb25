"""The parts every architecture is put together from: one kind of thing per file."""
