"""The HTTP server: OpenAI's API, routes that are switched at run time, and what they did."""
