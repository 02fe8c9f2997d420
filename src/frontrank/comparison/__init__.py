"""Train in several ways on the same images, and say which ranks unseen classes best."""
