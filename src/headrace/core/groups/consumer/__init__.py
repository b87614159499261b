"""Groups whose coordinator assigns partitions: the consumer protocol of KIP-848."""
