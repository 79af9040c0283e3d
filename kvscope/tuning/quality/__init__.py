"""What a change of prompts does to answers: recorded prompts asked both ways, at temperature 0."""
