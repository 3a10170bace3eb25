"""Mixers with a state of fixed size: Mamba, Mamba-2, RWKV, S4, LSTM, GRU."""
