"""Recipes: scenario files and families of them, without logic of their own."""
