"""What several published configs have in common."""
