"""Generated events of a website: the site, its traffic, what goes wrong on the way, and sending."""
