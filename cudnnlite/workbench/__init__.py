"""What one does around the core: tune, measure, report, trace, diagnose."""
