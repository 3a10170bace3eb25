"""Descriptions: Parts, their addresses, checks of their fields, their JSON format, and which kind fits which slot."""
