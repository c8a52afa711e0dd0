"""Campaigns against the library: random systems of hostile kinds, and what must hold for every one of them."""
