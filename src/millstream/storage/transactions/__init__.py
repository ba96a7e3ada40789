"""What transactions are made of on disk: staged parts, and the objects that committed messages lie in."""
