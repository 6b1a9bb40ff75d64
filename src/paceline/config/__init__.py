"""Configuration: read once, frozen, and the only part of the package that looks at the environment."""
