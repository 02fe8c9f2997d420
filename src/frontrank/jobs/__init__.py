"""Whole jobs, from settings to results: a comparison of losses, the report of a run, the demonstration."""
