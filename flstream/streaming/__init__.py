"""The streaming downloader: a service that offers snapshots, and downloads that fetch ranges."""
