"""What is wrong with a dataset before anybody judges its captions."""
