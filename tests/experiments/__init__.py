"""Tests of the studies: what they measure and print, not their figures."""
