"""Tables, plots and pages from what runs have left behind."""
