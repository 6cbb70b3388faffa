"""Which captions are wrong, what they should be, and the cleaned dataset."""
