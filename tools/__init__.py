"""Programs that make, record and measure for the repository; not part of the package."""
