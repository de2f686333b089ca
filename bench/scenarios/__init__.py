"""What is measured, a file each: `run(rounds, ...)` starts what only it needs, and keeps flat rounds."""
