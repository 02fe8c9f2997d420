"""A campaign of attacks on the final code: hostile uploads and files, kills, faults. Run by `scripts/attack`."""
