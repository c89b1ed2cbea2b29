"""The process that does the work of sites: it runs training code and delivers its answers."""
