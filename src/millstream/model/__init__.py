"""The vocabulary of Millstream: plain values that every other package speaks. Imports nothing of ours."""
