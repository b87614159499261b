"""The controller's side effects: write changes of the cluster, and publish them."""
