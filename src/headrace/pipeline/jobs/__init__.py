"""The pipeline files that Headrace ships."""
