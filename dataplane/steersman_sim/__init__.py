"""Engines without a GPU: the sim engine, and the demonstration that runs on it."""
