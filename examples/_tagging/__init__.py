"""Parts of the part-of-speech tagging example: treebanks, features, model, training."""
