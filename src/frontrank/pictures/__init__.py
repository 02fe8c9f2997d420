"""Image files as pictures: limits that a file must keep, decoding, and processes that decode files from outside."""
