"""Word lattices and their files, and a recurrent language model that rescores them."""
