"""What speculation would buy and cost, from figures alone: nothing here loads a model."""
