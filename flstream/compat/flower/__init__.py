"""Apps of Flower (flwr 1.26 and later), unchanged: its names, messages and strategies."""
