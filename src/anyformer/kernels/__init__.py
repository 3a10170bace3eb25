"""Attention kernels, scans, fused losses: plain functions behind one name each."""
