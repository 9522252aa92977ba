"""Files from the web, for manifests of URLs: many at once, within limits, in the order in which they are asked for."""
