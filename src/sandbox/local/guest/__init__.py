"""The guest side of the sandbox `local`: it moves into a room, lowers itself, and runs cells."""
