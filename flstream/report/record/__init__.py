"""What a run directory tells of its run, read without the code and the data of the job."""
