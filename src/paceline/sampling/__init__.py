"""From logits to tokens: processors, and the two ways of judging drafts."""
