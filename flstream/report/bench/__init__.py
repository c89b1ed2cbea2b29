"""What a bench found: tables, bars, a picture and a sentence; and how far it is."""
