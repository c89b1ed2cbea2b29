"""The streaming downloader: a service offers snapshots, and downloads fetch their ranges."""
