"""Benchmarks: ratios against what people would otherwise use, measured side by side in one run."""
