"""Tests of static addresses."""
