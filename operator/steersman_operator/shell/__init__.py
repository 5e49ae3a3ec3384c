"""The shell around the fleet core: it carries out commands and brings back what came of them."""
