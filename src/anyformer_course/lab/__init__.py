"""What several experiments share: small models, generated texts, measurements, the rows of Narang et al."""
