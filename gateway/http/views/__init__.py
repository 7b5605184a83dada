"""What each page shows, as one JSON object; a file for each page."""
