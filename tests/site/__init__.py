"""The site of the documents: its navigation, its pages, and what is checked of it."""
