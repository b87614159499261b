"""Tables of settings: Kafka's present ones, its old ones, ours, and what is said of them."""
