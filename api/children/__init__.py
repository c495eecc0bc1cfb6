"""Children that answer one request each: what they are asked, and how they are bounded."""
