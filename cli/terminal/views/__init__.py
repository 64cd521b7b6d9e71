"""What one command shows as a whole: the tables of `bench` and of `fit`."""
