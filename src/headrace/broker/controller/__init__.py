"""What the controller's broker does: the cluster's changes, written and announced."""
