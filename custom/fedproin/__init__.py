"""FedProIn: federated medical image classification with learnable prototypes, on NVIDIA FLARE."""
