"""Programs that maintain the repository; nothing here is installed."""
