"""Reports: what was measured, as findings, charts and pages."""
