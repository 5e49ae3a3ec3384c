"""Which engine and which weights made an answer: the engines' own reports, and the stamps."""
