"""Sources of samples: folders, archives, manifests and datasets."""
