"""Sources of samples: folders, archives, manifests and datasets. Workers import neither NumPy nor pyarrow here."""
