"""Benchmarks of the instrument itself: ratios side by side in one run, never asserted as seconds in a test."""
