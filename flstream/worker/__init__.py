"""Process for the work of sites: runs training code and delivers its answers."""
