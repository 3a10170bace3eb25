"""Position schemes: added to the input (absolute), rotated into queries and keys (rotary), added to scores (bias)."""
