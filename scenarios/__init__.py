"""Recipes: scenario files, and families of them. No logic of their own."""
