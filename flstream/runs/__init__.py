"""The run directory: its layout, its journal, its summary, and where a run resumes."""
