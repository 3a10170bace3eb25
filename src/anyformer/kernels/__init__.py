"""Attention kernels, scans and fused losses, as plain functions on tensors."""
