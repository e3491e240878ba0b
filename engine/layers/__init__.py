"""Building blocks of models; parameters own how they are loaded."""
