"""Descriptions: Parts and their addresses, checks of their fields, JSON, and which kind fits which slot."""
