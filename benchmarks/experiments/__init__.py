"""The papers' experiments on generated and real data, each a command: ``python -m benchmarks.experiments.NAME``."""
