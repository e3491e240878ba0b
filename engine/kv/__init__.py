"""The KV cache's shape and storage. Who owns which block is the engines' business."""
