"""What makes and records files of the repository; not part of the package."""
