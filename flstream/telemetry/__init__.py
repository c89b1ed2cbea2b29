"""What happened and what it cost: events, and the memory of every process. A leaf."""
