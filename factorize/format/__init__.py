"""The format of factor files, stated once and read strictly with numpy alone: container, manifest, tensors."""
