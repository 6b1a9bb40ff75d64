"""What steps and answers add up to, counted on the engine's thread and published for Prometheus."""
