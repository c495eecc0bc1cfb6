"""The questions of people with a training job: which mechanism, with how much noise, in which lines of code."""
