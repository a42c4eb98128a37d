"""From a table of images to batches of tensors."""
